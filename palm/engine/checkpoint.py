"""Checkpoints: everything of a run that changes, and how an interrupted run goes on exactly."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from palm.backbone import BACKBONES
from palm.core.descriptions import described
from palm.core.directories import new_directory
from palm.core.errors import StorageError
from palm.core.foreign import reading
from palm.core.logging import logger
from palm.core.storage import (
    load_tensors,
    numbered,
    read_object,
    save_tensors,
    under,
    verified_json,
    verify,
    write_json,
)
from palm.distributed import full_tensors, is_first, launch_id, shard_like
from palm.engine.differences import differences
from palm.engine.loop import Training
from palm.paradigm import HEADS
from palm.reader import READERS

FORMAT = "palm-checkpoint"
STATE = "state.json"
NEEDED = (STATE, "model.safetensors", "optimizer.safetensors")


def save_checkpoint(
    training: Training, folder: Path, identity: dict[str, Any], run_id: str | None = None
) -> None:
    """Write a run's weights, optimizer, averages and position to `folder`.

    Args:
        training: between two steps.
        folder: appears whole or not at all; of several ranks, which must all call this, rank 0 writes it.
        identity: what makes the run this run (see `resume`), JSON-ready.
        run_id: which run it belongs to, where several may use one folder.
    """
    names = {parameter: name for name, parameter in training.model.named_parameters()}
    files = {
        "model": training.model.state_dict(),
        "optimizer": optimizer_tensors(training.optimizer, lambda parameter: names[parameter]),  # type: ignore[index]
    }
    if training.ema is not None:
        files["ema"] = training.ema.state_dict()
    contents = {name: full_tensors(tensors) for name, tensors in files.items()}
    if not is_first():
        return
    with new_directory(folder, overwrite=True) as part:
        for name, tensors in contents.items():
            save_tensors(part / f"{name}.safetensors", tensors)
        state = {
            "format": FORMAT,
            "version": 1,
            "run": identity,
            "launch": launch_id(),
            "run_id": run_id,
            "heads": training.model.head_places,
            "components": _components(training, part),
            **training.state_dict(),
        }
        write_json(part / STATE, state)


def _components(training: Training, folder: Path) -> dict[str, Any]:
    """What is needed beside the weights to predict with any task."""
    tasks = {
        task.name: {
            "reader": described(READERS, task.reader, folder, place=f"tasks/{task.name}"),
            "paradigm": described(HEADS, task.head, folder, place=f"tasks/{task.name}"),
        }
        for task in training.tasks
    }
    return {"backbone": described(BACKBONES, training.model.backbone, folder), "tasks": tasks}


def load_checkpoint(training: Training, folder: Path, identity: dict[str, Any]) -> None:
    """Make `training` what it was when `save_checkpoint` wrote `folder`.

    Raises:
        StorageError: missing, damaged, or of a run with another identity; nothing was changed.
    """
    verify(folder, (*NEEDED, *(["ema.safetensors"] if training.ema is not None else [])))
    state = read_object(folder / STATE)
    with reading(folder / STATE):
        saved_run, steps_per_saved = on_devices_of(identity, state["run"])
        lines = differences(saved_run, identity)
    if lines:
        raise StorageError(
            f"{folder} is a checkpoint of another configuration:\n  "
            + "\n  ".join(lines)
            + "\nRestore these settings to resume it, or start a new run from its weights with load_pretrain"
        )
    parameters = dict(training.model.named_parameters())
    saved = load_tensors(folder / "model.safetensors")
    now = training.model.state_dict()
    placed = {name: shard_like(now.get(name, value), value) for name, value in saved.items()}
    training.model.load_state_dict(placed)
    restore_optimizer(training.optimizer, parameters, load_tensors(folder / "optimizer.safetensors"))
    if training.ema is not None:
        training.ema.load_state_dict(load_tensors(folder / "ema.safetensors"))
    training.load_state_dict(state, steps_per_saved)
    if any(factor != 1 for factor in steps_per_saved.values()):
        logger.info("step %d of other devices is step %d of these", state["step"], training.step)


def on_devices_of(run: dict[str, Any], saved: dict[str, Any]) -> tuple[dict[str, Any], dict[str, float]]:
    """A saved identity as it would read on the devices of `run`, if nothing but these changed.

    Either the rows of a step are still the same, shared out otherwise; or every device still has the
    same batch, and there are more or fewer of them.

    Returns:
        The identity, and task -> how many steps now have the rows of one step then.
    """
    tasks, steps_per_saved = dict(saved.get("tasks", {})), {}
    for name in tasks.keys() & run.get("tasks", {}).keys():
        then, now = tasks[name], run["tasks"][name]
        sharing = {key: now[key] for key in ("batch_size", "gradient_accumulation_steps", "devices")}
        if now["batch_size"] is not None and _size(then) == _size(now):
            tasks[name] = {**then, **sharing}
        elif {**then, "devices": now["devices"]} == {**then, **sharing}:
            planned = {key: now[key] for key in ("expected_steps",) if key in now}
            tasks[name] = {**then, **sharing, **planned}
            steps_per_saved[name] = then["devices"] / now["devices"]
    return {**saved, "tasks": tasks} if tasks else saved, steps_per_saved


def _size(task: dict[str, Any]) -> int:
    """The rows of a task's steps, or their tokens at most, on all devices, from its identity."""
    batch: int = task["batch_size"] or task["max_tokens_per_batch"]
    accumulated: int = task["gradient_accumulation_steps"]
    devices: int = task["devices"]
    return batch * accumulated * devices


@dataclass(frozen=True)
class TrainedWeights:
    """The weights of a checkpoint to predict with: the averaged ones, where the run kept averages.

    Args:
        backbone: of the encoder, by name.
        heads: task -> those of its head, by name.
    """

    backbone: dict[str, Tensor]
    heads: dict[str, dict[str, Tensor]]


def trained_weights(folder: Path) -> TrainedWeights:
    """Read the weights that `save_checkpoint` wrote.

    Raises:
        StorageError: missing or damaged.
    """
    files = verify(folder, NEEDED)
    weights = load_tensors(folder / "model.safetensors")
    if "ema.safetensors" in files:
        averages = load_tensors(folder / "ema.safetensors")
        weights |= {name: averages[name] for name in weights.keys() & averages.keys()}
    state = read_object(folder / STATE)
    with reading(folder / STATE):
        heads = {task: under(place, weights) for task, place in state["heads"].items()}
    return TrainedWeights(under("backbone", weights), heads)


def newest_checkpoint(save_path: Path, launch: str | None = None, run_id: str | None = None) -> Path | None:
    """The checkpoint under `save_path` whose run came farthest and that is whole.

    How far is counted in rows, since steps on many devices have more of them. Damaged checkpoints are
    passed over.

    Args:
        save_path: where checkpoints are.
        launch: only those that processes of this launch wrote (see `launch_id`).
        run_id: only those of this run.
    """
    found = []
    for folder in numbered(save_path, "step_").values():
        try:
            state = verified_json(folder, STATE)
            with reading(folder / STATE):
                if (launch is None or state["launch"] == launch) and run_id in (None, state["run_id"]):
                    found.append((_rows_seen(state), folder))
        except StorageError as error:
            logger.warning("passed over: %s", error)
    for _, folder in sorted(found, reverse=True):
        try:
            verify(folder, NEEDED)
        except StorageError as error:
            logger.warning("passed over: %s", error)
            continue
        return folder
    return None


def _rows_seen(state: dict[str, Any]) -> int:
    steps: dict[str, int] = state["task_steps"]
    return sum(steps[name] * _size(task) for name, task in state["run"]["tasks"].items())


def optimizer_tensors(optimizer: torch.optim.Optimizer, names: Callable[[Tensor], str]) -> dict[str, Tensor]:
    """The optimizer's state as `<parameter>/<entry>`, for parameters that have any."""
    return {
        f"{names(parameter)}/{entry}": value
        for parameter, state in optimizer.state.items()
        for entry, value in state.items()
    }


def restore_optimizer(
    optimizer: torch.optim.Optimizer, parameters: Mapping[str, Tensor], tensors: Mapping[str, Tensor]
) -> None:
    """Put back what `optimizer_tensors` gave; entries go to their parameter's device, counters stay."""
    optimizer.state.clear()
    for key, value in tensors.items():
        name, _, entry = key.rpartition("/")
        parameter = parameters[name]
        optimizer.state[parameter][entry] = (
            shard_like(parameter, value) if value.shape == parameter.shape else value
        )
