"""Checkpoints: everything of a run that changes, and how an interrupted run goes on exactly."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, get_args

import torch
from torch import Tensor

from palm.backbone import BACKBONES
from palm.core.differences import changes
from palm.core.errors import StorageError
from palm.core.files.atomic_dir import move_foreign_aside, new_directory
from palm.core.files.fs import numbered, write_json
from palm.core.files.manifest import check_version, verified_object, verify
from palm.core.files.serialization import describe, file_settings, rebuild
from palm.core.files.tensors import load_into, load_tensors, save_tensors, weights_under
from palm.core.files.untrusted import read_object, wrap_read_errors
from palm.core.logging import logger
from palm.core.numerics.precision import Choice, Precision
from palm.distributed.group import is_first
from palm.distributed.shards import full_tensors, shard_like
from palm.engine.inference.inference import InferenceModel
from palm.engine.inference.model_paths import DESCRIPTION, WEIGHTS
from palm.engine.run.run_names import CHECKPOINT_FORMAT, STATE
from palm.engine.run.training_metadata import data_of
from palm.engine.training.finite import check_finite
from palm.engine.training.loop import Training
from palm.engine.training.model import LORA, PRIVATE
from palm.engine.training.recipe import Recipe, identity
from palm.lr_sched import HORIZON
from palm.paradigm import HEADS
from palm.reader import READERS

VERSION = 2
WEIGHTS_NEEDED = (STATE, WEIGHTS)
START = "start_from (in Python load_pretrain)"
ANEW = f"start a new run from its weights with {START}"
NEEDED = (*WEIGHTS_NEEDED, "optimizer.safetensors")


def save_checkpoint(
    training: Training, folder: Path, run_id: str | None = None, *, resumable: bool = True
) -> None:
    """Write a run's weights, optimizer, averages and position to `folder`.

    Args:
        training: between two steps.
        folder: appears whole or not at all; of several ranks, which must all call this, rank 0 writes it.
        run_id: which run it belongs to, where several may use one folder.
        resumable: False for a checkpoint without optimizer, to start other runs from; its weights are the
            averaged ones where the run keeps averages.

    Raises:
        TrainingError: a tensor holds what is no finite number; nothing was saved.
        StorageError: the place cannot be written; nothing is left half-written.
    """
    with nullcontext() if resumable else training.averaged():
        files = tensors_of(training) if resumable else {"model": training.model.state_dict()}
        for name, tensors in files.items():
            check_finite(tensors, f"{name} at global step {training.step}")
        # Ranks gather together, though only the first one writes.
        contents = {name: full_tensors(tensors) for name, tensors in files.items()}
        if is_first():
            _write(training, folder, run_id, contents)


def tensors_of(training: Training) -> dict[str, dict[str, Tensor]]:
    """Return all learned tensors of a run by file and name: `model`, `optimizer`, and `ema` if it has any."""
    files = {
        "model": training.model.state_dict(),
        "optimizer": optimizer_tensors(training.optimizer, dict(training.model.named_parameters())),
    }
    return files if training.ema is None else {**files, "ema": training.ema.state_dict()}


def _write(
    training: Training, folder: Path, run_id: str | None, contents: Mapping[str, dict[str, Tensor]]
) -> None:
    move_foreign_aside(folder)
    with new_directory(folder, overwrite=True) as part:
        for name, tensors in contents.items():
            save_tensors(part / f"{name}.safetensors", tensors)
        state = {
            "format": CHECKPOINT_FORMAT,
            "version": VERSION,
            "run": identity(training.recipe),
            "run_id": run_id,
            "heads": training.model.head_places,
            "components": _components(training, part),
            "data": {task.name: data_of(task) for task in training.tasks},
            **training.state_dict(),
        }
        write_json(part / STATE, state)


def _components(training: Training, folder: Path) -> dict[str, Any]:
    """Describe the components that, with the weights, predict with any task."""
    # Of 200 tasks with one vocabulary, their copies of it would be nearly all of a small checkpoint.
    known: dict[str, Path] = {}
    tasks = {
        task.name: {
            "reader": describe(READERS, task.reader, folder, f"tasks/{task.name}", known),
            "paradigm": describe(HEADS, task.head, folder, f"tasks/{task.name}", known),
        }
        for task in training.tasks
    }
    return {"backbone": describe(BACKBONES, training.model.backbone, folder), "tasks": tasks}


def load_checkpoint(training: Training, folder: Path) -> None:
    """Make `training` what the run was when `save_checkpoint` wrote `folder`, through whichever door.

    Raises:
        StorageError: missing, damaged, of another version, or of a run with another identity; nothing was
            changed.
    """
    state, steps_per_saved = _state_of(training, folder)
    # From here on nothing is refused, so a run that was is as it was.
    _take_precision(training, state["run"]["precision"])
    parameters = dict(training.model.named_parameters())
    saved = load_tensors(folder / "model.safetensors")
    own = training.model.state_dict()
    placed = {name: shard_like(own.get(name, value), value) for name, value in saved.items()}
    with wrap_read_errors(folder, " as a checkpoint of this run"):  # whole, but somebody else's
        training.model.load_state_dict(placed)
        restore_optimizer(training.optimizer, parameters, load_tensors(folder / "optimizer.safetensors"))
        if training.ema is not None:
            training.ema.load_state_dict(load_tensors(folder / "ema.safetensors"))
        training.load_state_dict(state, steps_per_saved)
    if any(factor != 1 for factor in steps_per_saved.values()):
        logger.info("step %d of other devices is step %d of these", state["step"], training.step)


def _state_of(training: Training, folder: Path) -> tuple[dict[str, Any], dict[str, float]]:
    """Return the state of a checkpoint from which a run can resume, and its steps as by `on_devices_of`."""
    files = _verified(folder)
    if "optimizer.safetensors" not in files:
        raise StorageError(
            f"{folder} is a checkpoint without optimizer, so no run can resume from it; {ANEW}"
        )
    if training.ema is not None:
        verify(folder, ("ema.safetensors",))
    state = _of_this_version(read_object(folder / STATE), folder)
    now = identity(training.recipe)
    if _may_differ(training.recipe):
        now |= {"precision": saved} if (saved := state["run"].get("precision")) in get_args(Precision) else {}
    with wrap_read_errors(folder / STATE):
        saved_run, steps_per_saved = on_devices_of(now, state["run"])
        found = differences(saved_run, now) or _ends_behind(training, state, steps_per_saved)
    if found:
        lines = "\n  ".join([f"{folder} is a checkpoint of another configuration:", *found])
        raise StorageError(f"{lines}\nRestore these settings to resume it, or {ANEW}")
    return state, steps_per_saved


def _may_differ(recipe: Recipe) -> bool:
    """Return whether the precision was measured, which may come out otherwise on the same machine."""
    # With fsdp, the shards have been made for it.
    return recipe.chosen is not None and recipe.chosen.is_timed and recipe.parallel == "ddp"


def _take_precision(training: Training, saved: Precision) -> None:
    if training.model.precision != saved:
        logger.info("Computing in %s, as before the checkpoint.", saved)
        training.model.precision = saved
        training.recipe = replace(training.recipe, chosen=Choice(saved, "as before the checkpoint"))


def _verified(folder: Path) -> Collection[str]:
    """Return the files of a checkpoint, whole, by the manifest."""
    if (folder / DESCRIPTION).is_file() and not (folder / STATE).exists():
        raise StorageError(
            f"{folder} is a saved model, not a checkpoint; start a new run from it with {START}, or predict "
            "with palm.load_model"
        )
    if steps := numbered(folder, "step_"):
        raise StorageError(f"{folder} is a run; name one of its checkpoints, such as {steps[max(steps)]}")
    return verify(folder, WEIGHTS_NEEDED)


def _of_this_version(state: dict[str, Any], folder: Path) -> dict[str, Any]:
    """Return the state of a checkpoint after a check of its version."""
    remedy = f"continue it with the palm that wrote it, or {ANEW}"
    check_version(state, (CHECKPOINT_FORMAT, VERSION), folder / STATE, remedy)
    return state


def on_devices_of(run: dict[str, Any], saved: dict[str, Any]) -> tuple[dict[str, Any], dict[str, float]]:
    """A saved identity as it would read on the devices of `run`, if nothing but these changed.

    Either the rows of a step are still the same, shared out otherwise; or every device still has the
    same batch, and there are more or fewer of them. Then all that counts steps has other numbers: the
    plan of a task, and the horizon of the schedule.

    Returns:
        The identity, and task -> how many steps now have the rows of one step then.
    """
    tasks = dict(saved["tasks"])
    schedule = saved["lr_scheduler"]
    steps_per_saved = {}
    for name in tasks.keys() & run["tasks"].keys():
        then = tasks[name]
        now = run["tasks"][name]
        sharing = {key: now[key] for key in ("batch_size", "gradient_accumulation_steps", "devices")}
        # Where tokens limit a batch, batches shared out otherwise have other rows.
        if now["batch_size"] is not None and _size(then) == _size(now):
            tasks[name] = {**then, **sharing}
        elif {**then, "devices": now["devices"]} == {**then, **sharing}:
            planned = {key: now[key] for key in ("expected_steps",) if key in now}
            tasks[name] = {**then, **sharing, **planned}
            steps_per_saved[name] = then["devices"] / now["devices"]
    schedules = (schedule, run["lr_scheduler"])
    if any(factor != 1 for factor in steps_per_saved.values()) and all(map(_is_component, schedules)):
        horizon = {name: value for name, value in schedules[1]["settings"].items() if name in HORIZON}
        schedule = {**schedule, "settings": {**schedule["settings"], **horizon}}
    return {**saved, "tasks": tasks, "lr_scheduler": schedule}, steps_per_saved


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
        readers: task -> the settings of its reader, with files of the folder.
    """

    backbone: dict[str, Tensor]
    heads: dict[str, dict[str, Tensor]]
    readers: dict[str, dict[str, Any]]


def trained_weights(folder: Path) -> TrainedWeights:
    """Read the weights that `save_checkpoint` wrote.

    Raises:
        StorageError: missing or damaged.
    """
    files = _verified(folder)
    weights = load_tensors(folder / "model.safetensors")
    if any(name.startswith((PRIVATE, LORA)) for name in weights):
        raise StorageError(
            f"{folder} is of a run whose tasks have private_layers or lora, so it has no encoder for all; "
            "take the models that the run saved for each task"
        )
    if "ema.safetensors" in files:
        averages = load_tensors(folder / "ema.safetensors")
        weights |= {name: averages[name] for name in weights.keys() & averages.keys()}
    state = _of_this_version(read_object(folder / STATE), folder)
    with wrap_read_errors(folder / STATE):
        heads = {task: weights_under(place, weights) for task, place in state["heads"].items()}
        readers = {
            task: file_settings(parts["reader"]["settings"], folder)
            for task, parts in state["components"]["tasks"].items()
        }
        return TrainedWeights(weights_under("backbone", weights), heads, readers)


def models_in(folder: Path, trust: str | Sequence[str] = ()) -> list[InferenceModel]:
    """Load all tasks of a checkpoint to predict with them, in float32; `trust` as for `palm.load_model`.

    Raises:
        StorageError: damaged, of another palm, or its tasks have layers of their own.
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


def newest_checkpoint(save_path: Path, run_id: str | None = None) -> Path | None:
    """The checkpoint under `save_path` whose run came farthest and that is whole.

    How far is counted in rows, since steps on many devices have more of them. Damaged checkpoints are
    passed over.

    Args:
        save_path: where checkpoints are.
        run_id: only those of this run.
    """
    found = []
    for folder in numbered(save_path, "step_").values():
        try:
            state = _of_this_version(verified_object(folder, STATE), folder)
            with wrap_read_errors(folder / STATE):
                if run_id in (None, state["run_id"]):
                    steps = state["task_steps"]
                    tasks = state["run"]["tasks"]
                    found.append((sum(steps[name] * _size(task) for name, task in tasks.items()), folder))
        except StorageError as error:
            logger.warning("passed over: %s", error)
    # Digests of whole files are read for the farthest checkpoint alone, if that is whole.
    for _, folder in sorted(found, reverse=True):
        try:
            verify(folder, NEEDED)
        except StorageError as error:
            logger.warning("passed over: %s", error)
            continue
        return folder
    return None


def _is_component(value: Any) -> bool:
    return isinstance(value, Mapping) and value.keys() == {"name", "settings"}


def _ends_behind(
    training: Training, state: dict[str, Any], steps_per_saved: Mapping[str, float]
) -> list[str]:
    """Targets whose end was moved to a step that they have had: nobody would save them at it."""
    if training.recipe.mixing.follows_scores:  # its plan is that of the checkpoint
        return []
    return [
        f"{task.name} had {state['task_steps'][task.name]} steps in the checkpoint, and this run plans "
        f"{task.expected_steps} (it follows from {DERIVED['expected_steps']})"
        for task in training.tasks
        if task.is_target and steps_per_saved.get(task.name, 1) == 1
        if state["expected_steps"][task.name] != task.expected_steps <= state["task_steps"][task.name]
    ]


DERIVED = {
    "num_train_steps": "num_epochs, max_steps, mix_ratio, the batches and the data",
    "warmup_steps": "warmup_proportion and the steps of the run",
    "expected_steps": "num_epochs, max_steps, mix_ratio, the batches and the data",
}
"""What a configuration does not say itself -> what it follows from."""


def differences(saved: Mapping[str, Any], now: Mapping[str, Any]) -> list[str]:
    """List how two identities differ, a line each, under the names that settings have on the command line.

    Args:
        saved: the identity in a checkpoint.
        now: that of a run.
    """
    found = sorted(changes(saved, now))
    paths = {change.path for change in found}
    lines = []
    for path, old, new in found:
        wrapper = path.index("settings") if "settings" in path else None
        if wrapper is not None and (*path[:wrapper], "name") in paths:
            continue  # settings of two different components
        if path[0] == "tasks" and len(path) == 2:
            continue  # only one of them has the task, as task_instance tells
        if path[-2:-1] == ("train_file",):
            if path[-1] == "rows" or (*path[:-1], "rows") not in paths:
                lines.append(f"{_setting_name(path[:-1])} has changed: {_rows_told(path[-1], old, new)}")
            continue
        origin = f" (it follows from {DERIVED[path[-1]]})" if path[-1] in DERIVED else ""
        there = f"{_name_of(old)!r} in the checkpoint"
        lines.append(f"{_setting_name(path)}: {there}, {_name_of(new)!r} in this run{origin}")
    return lines


def _name_of(value: Any) -> Any:
    return value["name"] if _is_component(value) else value


def _rows_told(name: str, old: Any, new: Any) -> str:
    if name == "rows":
        return f"{old} rows in the checkpoint, {new} in this run"
    return "as many rows, with other contents or read otherwise"


def _setting_name(path: Sequence[str]) -> str:
    """Return a setting's name on the command line: `task.name` of a task's, without its component's name."""
    names = list(path[1:] if path[0] == "tasks" else path)
    if "settings" in names:
        wrapper = names.index("settings")
        del names[wrapper - 1 : wrapper + 1]
    elif names[-1] == "name":
        names.pop()
    return ".".join(names)


def optimizer_tensors(
    optimizer: torch.optim.Optimizer, parameters: Mapping[str, Tensor]
) -> dict[str, Tensor]:
    """Return the optimizer's state as `<parameter>/<entry>`, for parameters that have any."""
    # By identity, since `==` of tensors compares their numbers.
    names = {id(parameter): name for name, parameter in parameters.items()}
    return {
        f"{names[id(parameter)]}/{entry}": value
        for parameter, state in optimizer.state.items()
        for entry, value in state.items()
    }


def restore_optimizer(
    optimizer: torch.optim.Optimizer, parameters: Mapping[str, Tensor], tensors: Mapping[str, Tensor]
) -> None:
    """Put back what `optimizer_tensors` gave; entries go to their parameter's device.

    Counters go there too where a kernel reads them, in groups that are fused or capturable; others stay.
    """
    read_by_kernel = {
        id(parameter)
        for group in optimizer.param_groups
        if group.get("fused") or group.get("capturable")
        for parameter in group["params"]
    }
    # Not by `load_state_dict`, which knows parameters by their order alone.
    optimizer.state.clear()
    for key, value in tensors.items():
        name, _, entry = key.rpartition("/")
        parameter = parameters[name]
        if value.shape == parameter.shape:
            value = shard_like(parameter, value)
        elif id(parameter) in read_by_kernel:
            value = value.to(parameter.device)
        optimizer.state[parameter][entry] = value
