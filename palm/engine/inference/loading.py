"""A task's trained model, read back from its directory, in which nothing is run."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import Any

from palm.backbone import BACKBONES, Backbone
from palm.core.checks import choice_problems, count_problems, path_problems, raise_any
from palm.core.errors import ConfigError, StorageError
from palm.core.files.manifest import check_version, verify
from palm.core.files.serialization import rebuild
from palm.core.files.tensors import load_into, load_tensors, weights_under
from palm.core.files.untrusted import read_object, wrap_read_errors
from palm.core.limits import explain_limits
from palm.core.logging import logger
from palm.engine.inference.adapted import with_base
from palm.engine.inference.inference import InferenceModel
from palm.engine.inference.model_paths import DESCRIPTION, FORMAT, VERSION, WEIGHTS, chosen_model
from palm.engine.inference.onnx.computing import OnnxEngine
from palm.paradigm import HEADS, Head
from palm.reader import READERS
from palm.reader.cache import DataCache


@explain_limits()
def load_model(
    folder: str | Path,
    *,
    precision: str = "auto",
    engine: str = "torch",
    trust: str | Sequence[str] = (),
    reader: Mapping[str, Any] = MappingProxyType({}),
    head: Mapping[str, Any] = MappingProxyType({}),
    base: str | Path | None = None,
) -> InferenceModel:
    """Load what a finished target task saved; nothing but the directory is needed, and nothing in it is run.

    Args:
        folder: a saved model; or `<save_path>/<task>`, or `<save_path>` of a run of one task, for the best
            model there, or, where nothing was evaluated, the last.
        precision: as in `InferenceModel`; with engine 'onnx' 'fp32', which 'auto' is then, or 'int8'.
        engine: what computes: 'torch', or 'onnx' for onnxruntime on the CPU (extra `onnx`). Its graph is made
            at the first load and kept in the cache.
        trust: whose code may be imported for it, beside palm's and the running program's: dotted paths of
            classes, modules or packages, such as 'mypackage.readers'.
        reader: settings that replace the saved ones of the reader.
        head: those of the head.
        base: of the folder `lora` of a saved model, which has adapters and a head alone: the weights that
            they change, a directory or owner/name; the directory that the run started from where absent.

    Raises:
        StorageError: missing, damaged, naming code that nobody trusts, or not fitting these settings.
        ConfigError: settings out of their range.
        PalmError: the extra `onnx` is not installed, or the model cannot be a graph.
    """
    raise_any([*path_problems(folder=folder), *choice_problems(("torch", "onnx"), engine=engine)])
    if (engine, precision) == ("torch", "int8"):
        raise ConfigError("precision 'int8' needs engine 'onnx', which needs the extra `onnx`")
    given = Path(folder)
    folder = chosen_model(given)
    model = _model_in(folder, precision if engine == "torch" else "fp32", trust, reader, head, base)
    if engine == "onnx":
        model.engine = OnnxEngine(model.reader, model.backbone, model.head, precision, DataCache.of_user())
    if folder != given:
        logger.info("%s: model loaded from %s%s", model.task, folder, said_of(model.trained))
    return model


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
            backbone = with_base(backbone, weights, saved_base, folder, base)
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
    remedy = "load it with the palm that wrote it"
    check_version(description, (FORMAT, VERSION), folder / DESCRIPTION, remedy)
    with wrap_read_errors(folder / DESCRIPTION):
        if problems := count_problems(batch_size=description["batch_size"]):
            raise StorageError(f"{folder / DESCRIPTION}: {'; '.join(problems)}")
    return description


def _trained(training: Mapping[str, Any]) -> dict[str, Any]:
    """Return the checksum of the dev data, and of a best model its step and scores."""
    dev_file = (training.get("data") or {}).get("dev_file") or {}
    facts = {"dev_file": dev_file["sha256"]} if "sha256" in dev_file else {}
    if not training.get("best"):
        return facts
    return {**facts, "step": training["step"], "scores": (training["evaluation"] or {}).get("scores", {})}


def said_of(trained: Mapping[str, Any]) -> str:
    """` (the best, of global step 500: accuracy 0.9143)`, of a best model; nothing of another."""
    if "step" not in trained:
        return ""
    scores = trained.get("scores") or {}
    first = next((f": {name} {value}" for name, value in scores.items()), "")
    return f" (the best, of global step {trained['step']}{first})"


def load_weights(backbone: Backbone, head: Head, folder: Path) -> None:
    """Give components the weights of a saved model; that it is whole is for the caller to verify.

    Raises:
        StorageError: they cannot be read, or are of another shape.
    """
    weights = load_tensors(folder / WEIGHTS)
    load_into(backbone, weights_under("backbone", weights), folder)
    load_into(head, weights_under("paradigm", weights), folder)
