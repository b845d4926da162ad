"""Loading a task's trained model from its directory, without running any code in it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import Any

import torch

from palm.backbone import BACKBONES
from palm.core.cache import explain_limits
from palm.core.component import (
    choice_problems,
    count_problems,
    path_problems,
    raise_any,
    type_problems,
    unknown,
)
from palm.core.device import DeviceName, device_of
from palm.core.errors import ConfigError, StorageError
from palm.core.io import verify, wrap_read_errors
from palm.core.logging import logger
from palm.core.saved import load_into, rebuild
from palm.paradigm import HEADS
from palm.predict.inference import InferenceModel, JointModel
from palm.predict.onnx import OnnxEngine
from palm.pretrained.peft import read_adapters
from palm.reader import READERS
from palm.train.model_paths import DESCRIPTION, HEAD_WEIGHTS, WEIGHTS, chosen_model, description_of
from palm.train.saved_model import TrainedWeights, model_weights
from palm.train.task import PREDICTION_ROWS


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
) -> InferenceModel | JointModel:
    """Load a saved model; only its directory is needed, and no code in it is run.

    Args:
        folder: the saved model of a task, or `<save_path>/<task>` for the best one there (the last one if
            there was no evaluation); or a checkpoint, for all of its tasks; or the `save_path` of a run: with
            several targets for the model of all of them, `<save_path>/model`, with one target for its best
            model.
        device: 'cuda', 'cpu', or 'auto' for a GPU if one is visible and the engine supports it.
        precision: as in `InferenceModel`; with engine 'onnx' 'fp32' (also for 'auto') or 'int8'.
        engine: 'torch', or 'onnx' for onnxruntime on the CPU (extra `onnx`). The ONNX graph is made at the
            first load and kept in the cache.
        trust: dotted paths of classes, modules or packages that may be imported for the model, such as
            'mypackage.readers', besides palm and the running program.
        reader: settings that replace saved settings of the reader; for several tasks, task -> settings.
        head: settings that replace saved settings of the head; for several tasks, task -> settings.

    Raises:
        StorageError: missing, damaged, naming code that is not trusted, or incompatible with these settings.
        ConfigError: a setting is out of range, or no GPU is visible.
        PalmError: the extra `onnx` is not installed, or the model cannot be an ONNX graph.
    """
    raise_any([*path_problems(folder=folder), *choice_problems(("torch", "onnx"), engine=engine)])
    if (engine, precision) == ("torch", "int8"):
        raise ConfigError("precision 'int8' needs engine 'onnx', which needs the extra `onnx`")
    raise_any(type_problems((str, Sequence), "a dotted path, or a list of them", trust=trust))
    target = device_of(engine == "torch" and torch.cuda.is_available(), device)
    given = Path(folder)
    folder = chosen_model(given)
    description = _verified_description(folder)
    tasks = list(description["tasks"])
    readers, heads = (reader, head) if len(tasks) > 1 else ({tasks[0]: reader}, {tasks[0]: head})
    raise_any(unknown("task", name, tasks) for name in {**readers, **heads} if name not in tasks)
    weights = model_weights(folder, description["tasks"])
    computed = precision if engine == "torch" else "fp32"
    models = _models_in(folder, description, weights, computed, trust, readers, heads)
    if engine == "onnx":
        use_onnx(models, precision)
    if folder != given:
        logger.info("%s: model loaded from %s", ", ".join(tasks), folder)
    return (JointModel({model.task: model for model in models}) if len(tasks) > 1 else models[0]).to(target)


def load_models(folder: str | Path, **options: Any) -> JointModel:
    """Load the models of all tasks in a directory, also of a single one; as `load_model` otherwise."""
    model = load_model(folder, **options)
    return model if isinstance(model, JointModel) else JointModel({model.task: model})


def use_onnx(models: Sequence[InferenceModel], precision: str) -> None:
    """Let onnxruntime compute; tasks on one encoder have one graph.

    Raises:
        ConfigError: an unknown precision.
        PalmError: the extra `onnx` is not installed, or an encoder or a head cannot be exported.
    """
    for encoder in {id(model.backbone): model.backbone for model in models}.values():
        own = [model for model in models if model.backbone is encoder]
        tasks = {model.task: (model.reader, model.head) for model in own}
        engine = OnnxEngine(encoder, tasks, precision)
        for model in own:
            model.engine = engine


def _models_in(
    folder: Path,
    description: Mapping[str, Any],
    weights: TrainedWeights,
    precision: str,
    trust: str | Sequence[str],
    reader: Mapping[Any, Mapping[str, Any]] = MappingProxyType({}),
    head: Mapping[Any, Mapping[str, Any]] = MappingProxyType({}),
) -> list[InferenceModel]:
    """Build the models of all tasks in a description; the other arguments are those of `load_model`."""
    models = []
    with wrap_read_errors(folder / DESCRIPTION):
        encoder = weights.backbone
        backbone = rebuild(BACKBONES, description["backbone"], folder, trust=trust, weights=encoder)
        load_into(backbone, encoder, folder)
        for task, saved in description["tasks"].items():
            place = weights.adapters.get(task)
            own = weights.heads[task]
            settings = head.get(task, {})
            model = InferenceModel(
                task,
                rebuild(READERS, saved["reader"], folder, trust=trust, overrides=reader.get(task, {})),
                read_adapters(backbone, place).merged_into(backbone) if place else backbone,
                rebuild(HEADS, saved["paradigm"], folder, trust=trust, weights=own, overrides=settings),
                batch_size=saved.get("batch_size", PREDICTION_ROWS),
                precision=precision,
            )
            load_into(model.head, own, folder)
            if (training := saved.get("training") or {}).get("best"):
                scores = (training["evaluation"] or {}).get("scores", {})
                model.trained = {"step": training["step"], "scores": scores}
            models.append(model)
    return models


def _verified_description(folder: Path) -> dict[str, Any]:
    verify(folder, (DESCRIPTION, WEIGHTS, HEAD_WEIGHTS))
    description = description_of(folder)
    with wrap_read_errors(folder / DESCRIPTION):
        sizes = [task["batch_size"] for task in description["tasks"].values()]
        if problems := [line for size in sizes for line in count_problems(batch_size=size)]:
            raise StorageError(f"{folder / DESCRIPTION}: {'; '.join(problems)}")
    return description
