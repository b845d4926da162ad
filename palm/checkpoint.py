"""Checkpoints: everything of a run that changes, and how an interrupted run goes on exactly."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from torch import Tensor

from palm.backbone import BACKBONES
from palm.descriptions import described
from palm.distributed import is_first, like, whole
from palm.errors import StorageError
from palm.logging import logger
from palm.loop import Training
from palm.paradigm import PARADIGMS
from palm.reader import READERS
from palm.storage import (
    load_tensors,
    new_directory,
    numbered,
    optimizer_tensors,
    read_json,
    restore_optimizer,
    save_tensors,
    under,
    verify,
    write_json,
)

FORMAT = "palm-checkpoint"


def save_checkpoint(training: Training, folder: Path, identity: dict[str, Any]) -> None:
    """Write a run's weights, optimizer, averages and position to `folder`.

    Args:
        training: between two steps.
        folder: appears whole or not at all; of several ranks, which must all call this, rank 0 writes it.
        identity: what makes the run this run (see `resume`), JSON-ready.
    """
    names = {parameter: name for name, parameter in training.model.named_parameters()}
    files = {
        "model": training.model.state_dict(),
        "optimizer": optimizer_tensors(training.optimizer, lambda parameter: names[parameter]),  # type: ignore[index]
    }
    if training.ema is not None:
        files["ema"] = training.ema.state_dict()
    contents = {name: whole(tensors) for name, tensors in files.items()}
    if not is_first():
        return
    with new_directory(folder) as part:
        for name, tensors in contents.items():
            save_tensors(part / f"{name}.safetensors", tensors)
        state = {
            "format": FORMAT,
            "version": 1,
            "run": identity,
            "heads": training.model.heads,
            "components": _components(training, part),
            **training.state_dict(),
        }
        write_json(part / "state.json", state)


def _components(training: Training, folder: Path) -> dict[str, Any]:
    """What is needed beside the weights to predict with any task."""
    tasks = {
        task.name: {
            "reader": described(READERS, task.reader, folder, place=f"tasks/{task.name}"),
            "paradigm": described(PARADIGMS, task.paradigm, folder, place=f"tasks/{task.name}"),
        }
        for task in training.tasks
    }
    return {"backbone": described(BACKBONES, training.model.backbone, folder), "tasks": tasks}


def load_checkpoint(training: Training, folder: Path, identity: dict[str, Any]) -> None:
    """Make `training` what it was when `save_checkpoint` wrote `folder`.

    Raises:
        StorageError: missing, damaged, or of a run with another identity; nothing was changed.
    """
    verify(folder)
    state = read_json(folder / "state.json")
    if differences := _differences(state["run"], identity):
        raise StorageError(
            f"{folder} is a checkpoint of another configuration:\n  "
            + "\n  ".join(differences)
            + "\nRestore these settings to resume it, or start a new run from its weights with load_pretrain"
        )
    parameters = dict(training.model.named_parameters())
    saved = load_tensors(folder / "model.safetensors")
    now = training.model.state_dict()
    training.model.load_state_dict({name: like(now.get(name, value), value) for name, value in saved.items()})
    restore_optimizer(training.optimizer, parameters, load_tensors(folder / "optimizer.safetensors"))
    if training.ema is not None:
        training.ema.load_state_dict(load_tensors(folder / "ema.safetensors"))
    training.load_state_dict(state)


@dataclass(frozen=True)
class TrainedWeights:
    """The weights of a checkpoint to predict with: the averaged ones, where the run kept averages.

    Args:
        backbone: of the encoder, by name.
        heads: task -> those of its output layer, by name.
    """

    backbone: dict[str, Tensor]
    heads: dict[str, dict[str, Tensor]]


def trained_weights(folder: Path) -> TrainedWeights:
    """Read the weights that `save_checkpoint` wrote.

    Raises:
        StorageError: missing or damaged.
    """
    verify(folder)
    weights = load_tensors(folder / "model.safetensors")
    if (folder / "ema.safetensors").is_file():
        averages = load_tensors(folder / "ema.safetensors")
        weights |= {name: averages[name] for name in weights.keys() & averages.keys()}
    places = read_json(folder / "state.json")["heads"]
    return TrainedWeights(
        under("backbone", weights), {task: under(place, weights) for task, place in places.items()}
    )


def newest_checkpoint(save_path: Path) -> Path | None:
    """The checkpoint with most steps under `save_path` that is whole; damaged ones are passed over."""
    steps = numbered(save_path, "step_")
    for step in sorted(steps, reverse=True):
        try:
            verify(steps[step])
        except StorageError as error:
            logger.warning("passed over: %s", error)
            continue
        return steps[step]
    return None


def _differences(saved: dict[str, Any], now: dict[str, Any], place: str = "") -> list[str]:
    lines = []
    for key in sorted({*saved, *now}):
        old, new = saved.get(key), now.get(key)
        if isinstance(old, dict) and isinstance(new, dict):
            lines += _differences(old, new, f"{place}{key}.")
        elif old != new:
            lines.append(f"{place}{key}: {old!r} in the checkpoint, {new!r} in this run")
    return lines
