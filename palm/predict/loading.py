"""Loading a task's trained model from its directory, without running any code in it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import Any

import torch

from palm.backbone import BACKBONES, Backbone
from palm.core.cache import explain_limits
from palm.core.component import choice_problems, count_problems, path_problems, raise_any
from palm.core.device import DeviceName, device_of
from palm.core.errors import ConfigError, StorageError
from palm.core.io import check_version, read_object, verify, wrap_read_errors
from palm.core.logging import logger
from palm.core.saved import Tensors, load_into, load_tensors, rebuild, tensor_digests, weights_under
from palm.paradigm import HEADS, Head
from palm.predict.inference import InferenceModel
from palm.predict.onnx import OnnxEngine
from palm.pretrained import load_pretrain, pretrained_directory
from palm.pretrained.peft import read_adapters
from palm.reader import READERS
from palm.reader.cache import DataCache
from palm.train.checkpoint import trained_weights
from palm.train.model_paths import DESCRIPTION, FORMAT, STATE, VERSION, WEIGHTS, chosen_model


@explain_limits()
def load_model(
    folder: str | Path,
    *,
    device: DeviceName = "auto",
    precision: str = "auto",
    engine: str = "torch",
    trust: str | Sequence[str] = (),
    reader: Mapping[str, Any] = MappingProxyType({}),
    head: Mapping[str, Any] = MappingProxyType({}),
    base: str | Path | None = None,
) -> InferenceModel:
    """Load the model that a finished target saved; only its directory is needed, and no code in it is run.

    Args:
        folder: a saved model; or `<save_path>/<task>`, or `<save_path>` of a run with one task, for the best
            model there (the last one if there was no evaluation).
        device: 'cuda', 'cpu', or 'auto' for a GPU if one is visible and the engine supports it.
        precision: as in `InferenceModel`; with engine 'onnx' 'fp32' (also for 'auto') or 'int8'.
        engine: 'torch', or 'onnx' for onnxruntime on the CPU (extra `onnx`). The ONNX graph is made at the
            first load and kept in the cache.
        trust: dotted paths of classes, modules or packages that may be imported for the model, such as
            'mypackage.readers', besides palm and the running program.
        reader: settings that replace saved settings of the reader.
        head: settings that replace saved settings of the head.
        base: only for the folder `lora` of a saved model, which has only adapters and a head: the weights
            that they change, a directory or owner/name. The default is the directory the run started from.

    Raises:
        StorageError: missing, damaged, naming code that is not trusted, or incompatible with these settings.
        ConfigError: a setting is out of range, or no GPU is visible.
        PalmError: the extra `onnx` is not installed, or the model cannot be an ONNX graph.
    """
    raise_any([*path_problems(folder=folder), *choice_problems(("torch", "onnx"), engine=engine)])
    if (engine, precision) == ("torch", "int8"):
        raise ConfigError("precision 'int8' needs engine 'onnx', which needs the extra `onnx`")
    target = device_of(engine == "torch" and torch.cuda.is_available(), device)
    given = Path(folder)
    folder = chosen_model(given)
    model = _model_in(folder, precision if engine == "torch" else "fp32", trust, reader, head, base)
    if engine == "onnx":
        model.engine = OnnxEngine(model.reader, model.backbone, model.head, precision, DataCache.of_user())
    if folder != given:
        logger.info("%s: model loaded from %s%s", model.task, folder, best_note(model.trained))
    return model.to(target)


def _model_in(
    folder: Path,
    precision: str,
    trust: str | Sequence[str],
    reader: Mapping[str, Any],
    head: Mapping[str, Any],
    base: str | Path | None,
) -> InferenceModel:
    description = _verified_description(folder)
    weights = load_tensors(folder / WEIGHTS)
    own = {"backbone": weights_under("backbone", weights), "head": weights_under("paradigm", weights)}
    with wrap_read_errors(folder / DESCRIPTION):
        saved_base = description.get("base")
        whole = None if saved_base else own["backbone"]
        backbone = rebuild(BACKBONES, description["backbone"], folder, trust=trust, weights=whole)
        if saved_base:
            backbone = _with_base(backbone, weights, saved_base, folder, base)
        model = InferenceModel(
            str(description["task"]),
            rebuild(READERS, description["reader"], folder, trust=trust, overrides=reader),
            backbone,
            rebuild(HEADS, description["paradigm"], folder, trust=trust, weights=own["head"], overrides=head),
            batch_size=description["batch_size"],
            precision=precision,
        )
        model.trained = _trained(description.get("training") or {})
    if not saved_base:
        load_into(model.backbone, own["backbone"], folder)
    load_into(model.head, own["head"], folder)
    return model


def _verified_description(folder: Path) -> dict[str, Any]:
    verify(folder, (DESCRIPTION, WEIGHTS))
    description = read_object(folder / DESCRIPTION)
    remedy = "load it with the version of palm that wrote it"
    check_version(description, (FORMAT, VERSION), folder / DESCRIPTION, remedy)
    with wrap_read_errors(folder / DESCRIPTION):
        if problems := count_problems(batch_size=description["batch_size"]):
            raise StorageError(f"{folder / DESCRIPTION}: {'; '.join(problems)}")
    return description


def _trained(training: Mapping[str, Any]) -> dict[str, Any]:
    """Return the checksum of the dev data and, for a best model, its step and scores."""
    dev_file = (training.get("data") or {}).get("dev_file") or {}
    facts = {"dev_file": dev_file["sha256"]} if "sha256" in dev_file else {}
    if not training.get("best"):
        return facts
    return {**facts, "step": training["step"], "scores": (training["evaluation"] or {}).get("scores", {})}


def best_note(trained: Mapping[str, Any]) -> str:
    """Return a note such as ` (the best, of global step 500: accuracy 0.9143)`; "" for other models."""
    if "step" not in trained:
        return ""
    scores = trained.get("scores") or {}
    first = next((f": {name} {value}" for name, value in scores.items()), "")
    return f" (the best, of global step {trained['step']}{first})"


def load_weights(backbone: Backbone, head: Head, folder: Path) -> None:
    """Load the weights of a saved model, which the caller has verified, into components.

    Raises:
        StorageError: the weights cannot be read, or have other shapes.
    """
    weights = load_tensors(folder / WEIGHTS)
    load_into(backbone, weights_under("backbone", weights), folder)
    load_into(head, weights_under("paradigm", weights), folder)


def _with_base(
    backbone: Backbone, weights: Tensors, saved: Mapping[str, Any], folder: Path, base: str | Path | None
) -> Backbone:
    """Return the encoder of a directory that `Adapted` wrote, with its adapters merged.

    Args:
        backbone: an encoder built from the directory's description.
        weights: the weights in the directory.
        saved: the result of `facts` in the directory.
        folder: the directory.
        base: overrides the location of the base in `saved`.

    Raises:
        StorageError: the base is not found, or has other weights.
    """
    # A base is downloaded only if the caller names it.
    place = base or saved["path"] or ""
    if base is None and not Path(place).is_dir():
        raise StorageError(
            f"{folder} has only adapters and a head, and their base {place!r} is not a directory here; pass "
            "base=, a directory or owner/name"
        )
    load_pretrain(backbone, pretrained_directory(place))
    load_into(backbone, {**backbone.state_dict(), **weights_under("backbone", weights)}, folder)
    digests = tensor_digests(backbone.state_dict())
    if other := [name for name in digests if digests[name] != saved["digests"].get(name)]:
        raise StorageError(
            f"{place} is not the base of {folder}: {len(other)} of {len(digests)} tensors differ, starting "
            f"with {other[0]}; pass the weights that the run started from as base="
        )
    return read_adapters(backbone, folder).merged_into(backbone)


def models_in(folder: Path, trust: str | Sequence[str] = ()) -> list[InferenceModel]:
    """Load the models of all tasks in a checkpoint, in float32; `trust` is that of `palm.load_model`.

    Raises:
        StorageError: damaged, of another version of palm, or its tasks have layers of their own.
    """
    weights = trained_weights(folder)
    with wrap_read_errors(folder / STATE):
        components = read_object(folder / STATE)["components"]
        backbone = rebuild(BACKBONES, components["backbone"], folder, weights=weights.backbone, trust=trust)
        load_into(backbone, weights.backbone, folder)
        models = []
        for task, parts in components["tasks"].items():
            head = rebuild(HEADS, parts["paradigm"], folder, weights=weights.heads[task], trust=trust)
            reader = rebuild(READERS, parts["reader"], folder, trust=trust)
            models.append(InferenceModel(task, reader, backbone, head, precision="fp32"))
            load_into(head, weights.heads[task], folder)
        return models
