"""Checkpoints: what they hold, and when one may be resumed."""

from __future__ import annotations

import math
import platform
import re
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from palm.backbone import BACKBONES
from palm.backbone.low_rank import DEFAULTS, FROM
from palm.config.run import described, plain
from palm.core.errors import StorageError, changes, setting_name
from palm.core.group import is_main_process
from palm.core.io import (
    check_version,
    keep_foreign,
    new_directory,
    numbered,
    verified_object,
    verify,
    wrap_read_errors,
    write_json,
)
from palm.core.logging import logger, shown_url
from palm.core.saved import load_tensors, save_tensors
from palm.core.version import __version__
from palm.mixing import MIXINGS
from palm.mixing.balance import BALANCES
from palm.optimizer import OPTIMIZERS
from palm.optimizer.lr_sched import LR_SCHEDULES, Schedule
from palm.paradigm import HEADS, Head
from palm.reader.tables.files import shown_name, shown_path
from palm.train.evaluation import Evaluator, json_ready
from palm.train.loop import Training
from palm.train.model_card import MAX_WARNINGS
from palm.train.model_paths import (
    CHECKPOINT,
    CHECKPOINT_FORMAT,
    DESCRIPTION,
    HEAD_WEIGHTS,
    OPTIMIZER,
    RAW,
    STATE,
    WEIGHTS,
)
from palm.train.saved_model import described_model
from palm.train.task import TaskState
from palm.train.train_step import check_finite

COMPARED = (
    "gradient_accumulation_steps",
    "mix_ratio",
    "is_target",
    "shuffle",
    "loss_weight",
    "learning_rate_factor",
    "head_learning_rate",
)
"""Settings of a task that the losses depend on, besides its components."""

_FOLDERS = re.compile(r"(?<![^\s'\"(])(/|[A-Za-z]:\\)\S*[/\\](?=\S)")
"""Folders of absolute paths, which are of no use for others."""

MAX_TASKS = 50
"""Maximum number of tasks whose steps a model lists; without it, a run's folder would grow quadratically."""


def training_facts(training: Training, task: TaskState, best: bool = False) -> dict[str, Any]:
    """Return the metadata of a task's model in its current state, JSON-ready, with file names but no paths.

    Returns:
        `step`, `task_step`, `expected_steps` and `epochs`; `num_tasks`, the number of tasks that share the
        encoder; `tasks`, the steps of the first ones and of this one; `data`, files with rows and SHA-256;
        `evaluation`, the last one with its step and `ScoredRows`; `best`, True if the model is saved as the
        best; `warnings` about the task and its files; `versions`.
        Empty on ranks other than 0.
    """
    if not is_main_process():
        return {}
    return {
        "step": training.step,
        "task_step": task.step,
        "expected_steps": task.expected_steps,
        "epochs": round(task.step / task.steps_per_epoch, 2),
        "num_tasks": len(training.tasks),
        "tasks": {each.name: each.step for each in (*training.tasks[:MAX_TASKS], task)},
        "data": data_of(training, task),
        "evaluation": _evaluation(training, task),
        "best": best,
        "warnings": _warnings(training, task),
        "versions": {"palm": __version__, "torch": torch.__version__, "python": platform.python_version()},
    }


def _warnings(training: Training, task: TaskState) -> list[str]:
    """Return the warnings of a run about a task, without the folders of files."""
    files = [shown_path(file) for file in (task.task.train_file, task.task.dev_file) if file is not None]
    lines = [
        line
        for line in dict.fromkeys(training.warnings)
        if line.startswith(f"{task.name}: ") or any(file in line for file in files)
    ]
    return [_FOLDERS.sub("", shown_url(line)) for line in lines[:MAX_WARNINGS]]


def data_of(training: Training, task: TaskState) -> dict[str, Any]:
    """Describe a task's training data, and its dev data if the run evaluates it: name, rows and SHA-256."""
    data: dict[str, Any] = {}
    if (path := task.task.train_file) is not None:
        data["train_file"] = {"rows": len(task.stream.rows), "name": shown_name(path), "sha256": task.sha256}
    evaluator = evaluator_of(training)
    if task.task.dev_file is not None and evaluator is not None:
        dev = evaluator.dev[task.name]
        name = shown_name(task.task.dev_file)
        data["dev_file"] = {"rows": dev.num_examples, "name": name, "sha256": dev.sha256}
    return data


def evaluator_of(training: Training) -> Evaluator | None:
    """Return the evaluator of a run, if it has one."""
    evaluator = training.attached("evaluator")
    return evaluator if isinstance(evaluator, Evaluator) else None


def _evaluation(training: Training, task: TaskState) -> dict[str, Any] | None:
    evaluator = evaluator_of(training)
    last = evaluator.evaluations[-1] if evaluator is not None and evaluator.evaluations else None
    if last is None or task.name not in last.scores:
        return None
    rows = vars(last.rows[task.name]) if task.name in last.rows else {}
    return {"step": last.step, "scores": json_ready(last.scores[task.name]), **rows}


def compared(training: Training) -> dict[str, Any]:
    """Return everything that the losses of a run depend on, JSON-ready; it must match to resume.

    This is the configuration without the settings that do not affect the losses of later steps, and with the
    contents of the training data in place of readers and paths. It is the same for runs of a `Controller` and
    of trainers, because components are described by their registry names and all their settings.

    The length of a run is not part of it unless the losses depend on the length: the total number of steps
    is a setting of a schedule that falls towards the end, and planned steps are included if draws depend on
    them. So a run with a constant rate can be continued for more epochs, but not one whose rate falls to 0.
    """
    parts = training.parts
    settings = training.config.settings
    tasks = _compared_tasks(training)
    # A task's own seed that equals the run's changes nothing, so it does not make another run.
    seed = settings.random_seed
    own_seeds = {task.name: task.seed for task in parts.tasks if task.seed not in (None, seed)}
    found = {
        "task_instance": list(tasks),  # draws depend on the order of tasks
        "tasks": tasks,
        "backbone": described(BACKBONES, parts.backbone),
        "optimizer": described(OPTIMIZERS, parts.optimizer),
        **plain(parts.groups.settings),
        "lr_scheduler": described_schedule(training.schedule),
        "mixing": described(MIXINGS, parts.mixing),
        "tasks_per_step": settings.tasks_per_step,
        "balance": None if parts.balance is None else described(BALANCES, parts.balance),
        "ema_decay": settings.ema_decay if settings.use_ema else None,
        "random_seed": seed,
        "precision": training.model.precision,
    }
    if own_seeds:
        found["seeds"] = own_seeds
    return found


def described_schedule(schedule: Callable[[int], float]) -> Any:
    """Return the name and the settings of the simplest equivalent schedule, or the path of a function."""
    return described(LR_SCHEDULES, schedule.simplest()) if isinstance(schedule, Schedule) else plain(schedule)


def _compared_tasks(training: Training) -> dict[str, dict[str, Any]]:
    plan = training.plan
    binding = plan.mixing.binding_plan(plan.primary_tasks, plan.count)
    names = [task.name for task in plan.primary_tasks]
    steps = {} if binding is None else dict(zip(names, binding, strict=True))
    owners: dict[Head, str] = {}
    found = {}
    for state in training.tasks:
        task = state.task
        own: dict[str, Any] = {name: getattr(task, name) for name in COMPARED}
        optional = {
            "share_rows_with": task.share_rows_with,
            # With defaults filled in, so giving a default explicitly does not make another run.
            "lora": task.lora and plain(dict(task.lora) if FROM in task.lora else {**DEFAULTS, **task.lora}),
            "expected_steps": steps.get(task.name),
        }
        found[task.name] = {
            **own,
            **{name: value for name, value in optional.items() if value},
            "batch_size": task.batch_size,
            "devices": state.stream.world_size,
            "paradigm": described(HEADS, task.head),
            # Tasks that share a head differ from tasks with equal heads, so each names the owner of its head.
            "head_of": owners.setdefault(task.head, task.name),
            # The digest of the rows covers file, vocabulary and reader; paths may differ between programs.
            "train_file": {"rows": len(state.stream.rows), "digest": state.stream.rows.digest},
        }
    return found


VERSION = 3
START = "start_from (in Python load_pretrain)"
NEW_RUN = f"start a new run from its weights with {START}"
NEEDED = (STATE, DESCRIPTION, WEIGHTS, HEAD_WEIGHTS, OPTIMIZER)


def save_checkpoint(training: Training, folder: Path, run_id: str | None = None) -> None:
    """Write a run to `folder`: the model of all tasks, with averaged weights if it keeps averages, and what
    resuming needs besides.

    Args:
        training: between two steps.
        folder: written atomically. All ranks must call this; rank 0 writes.
        run_id: id of the run, because several runs may use one folder.

    Raises:
        TrainingError: a tensor has values that are not finite; nothing was saved.
        StorageError: the folder cannot be written; nothing is left half-written.
    """
    model = training.model
    optimizer = optimizer_tensors(training.optimizer, dict(model.named_parameters()))
    for name, tensors in (("model", model.state_dict()), ("optimizer", optimizer)):
        check_finite(tensors, f"{name} at global step {training.step}")
    if not is_main_process():
        return
    keep_foreign(folder)
    with new_directory(folder, overwrite=True) as part:
        save_tensors(part / OPTIMIZER, optimizer)
        if training.ema is not None:
            save_tensors(part / RAW, model.state_dict())
        with training.averaged():
            weights = model.state_dict()
            encoder = {name: value for name, value in weights.items() if name.startswith("backbone.")}
            save_tensors(part / WEIGHTS, encoder)
            save_tensors(part / HEAD_WEIGHTS, {n: v for n, v in weights.items() if n not in encoder})
        parts = {
            each.name: (each.reader, each.head, each.task.rows_per_prediction) for each in training.tasks
        }
        facts = {task.name: training_facts(training, task) for task in training.tasks}
        write_json(part / DESCRIPTION, described_model(model.backbone, parts, part, facts))
        state = {
            "format": CHECKPOINT_FORMAT,
            "version": VERSION,
            "run": compared(training),
            "run_id": run_id,
            **training.state_dict(),
        }
        write_json(part / STATE, state)


def load_checkpoint(training: Training, folder: Path) -> None:
    """Restore `training` to the state that `save_checkpoint` wrote to `folder`, from either interface.

    Raises:
        StorageError: missing, damaged, of another version, or of a run with another identity; `training`
            was not changed.
    """
    state = _state_of(training, folder)
    # All checks are above this line, so a run that is refused has not been changed.
    model = training.model
    with wrap_read_errors(folder, " as a checkpoint of this run"):  # intact, but it may be of another run
        model.load_state_dict(load_tensors(folder / WEIGHTS) | load_tensors(folder / HEAD_WEIGHTS))
        if training.ema is not None:
            training.ema.restore(state["averaged_steps"])
            model.load_state_dict(load_tensors(folder / RAW))
        optimizer = load_tensors(folder / OPTIMIZER)
        restore_optimizer(training.optimizer, dict(model.named_parameters()), optimizer)
        training.load_state_dict(state)
    training.resumed_from = folder


def _state_of(training: Training, folder: Path) -> dict[str, Any]:
    """Return the state of a checkpoint from which the run may resume."""
    if (folder / DESCRIPTION).is_file() and not (folder / STATE).exists():
        raise StorageError(
            f"{folder} is a saved model, not a checkpoint; start a new run from it with {START}, or predict "
            "with palm.load_model"
        )
    if steps := numbered(folder, CHECKPOINT):
        raise StorageError(f"{folder} is a run; give one of its checkpoints, such as {steps[max(steps)]}")
    state = _read_state(folder)
    verify(folder, NEEDED if training.ema is None else (*NEEDED, RAW))
    now = compared(training)
    with wrap_read_errors(folder / STATE):
        found = differences(state["run"], now) or _already_past_end(training, state)
    if found:
        lines = "\n  ".join([f"{folder} is a checkpoint of another configuration:", *found])
        raise StorageError(f"{lines}\nRestore these settings to resume it, or {NEW_RUN}")
    return state


def _read_state(folder: Path) -> dict[str, Any]:
    """Return the state of a checkpoint of this version; the other files are not verified."""
    state = verified_object(folder, STATE)
    remedy = f"resume it with the version of palm that wrote it, or {NEW_RUN}"
    check_version(state, (CHECKPOINT_FORMAT, VERSION), folder / STATE, remedy)
    return state


def _on_devices_of(now: Mapping[str, Any], saved: Mapping[str, Any]) -> dict[str, Any]:
    """Return the saved identity of a task, with the devices of this run if a step has the same rows.

    Such a step may be divided differently among devices and batches.
    """
    shared = ("batch_size", "gradient_accumulation_steps", "devices")
    one, other = (math.prod(task[name] for name in shared) for task in (saved, now))
    return {**saved, **{name: now[name] for name in shared if one == other}}


def newest_checkpoint(save_path: Path, run_id: str | None = None) -> Path | None:
    """Return the intact checkpoint under `save_path` with the most steps; None if there is none.

    Damaged checkpoints are ignored with a warning.

    Args:
        save_path: the folder of the checkpoints.
        run_id: consider only checkpoints of this run.
    """
    for _, folder in sorted(numbered(save_path, CHECKPOINT).items(), reverse=True):
        try:
            if run_id in (None, _read_state(folder).get("run_id")):
                verify(folder, NEEDED)  # reads whole files, so it is last
                return folder
        except StorageError as error:
            logger.warning("ignored: %s", error)
    return None


def _is_component(value: Any) -> bool:
    return isinstance(value, Mapping) and value.keys() == {"name", "settings"}


def _already_past_end(training: Training, state: dict[str, Any]) -> list[str]:
    """List targets whose new end the checkpoint has already passed, since they would never be saved."""
    return [
        f"{task.name} had {state['task_steps'][task.name]} steps in the checkpoint, but this run plans "
        f"{task.expected_steps} (derived from {DERIVED['expected_steps']})"
        for task in training.tasks
        if task.is_target
        if state["expected_steps"][task.name] != task.expected_steps <= state["task_steps"][task.name]
    ]


DERIVED = {
    "num_train_steps": "num_epochs, max_steps, mix_ratio, the batches and the data",
    "warmup_steps": "warmup_proportion and the steps of the run",
    "expected_steps": "num_epochs, max_steps, mix_ratio, the batches and the data",
}
"""Entry of an identity that is no setting -> what it is derived from."""


def differences(saved: Mapping[str, Any], now: Mapping[str, Any]) -> list[str]:
    """List the differences between two identities, one per line, with the names of command-line settings.

    Args:
        saved: the identity in a checkpoint.
        now: the identity of a run.
    """
    tasks = dict(saved.get("tasks", {}))
    for name in tasks.keys() & now.get("tasks", {}).keys():
        tasks[name] = _on_devices_of(now["tasks"][name], tasks[name])
    found = sorted(changes({**saved, "tasks": tasks}, now))
    paths = {change.path for change in found}
    lines = []
    for path, old, new in found:
        wrapper = path.index("settings") if "settings" in path else None
        if wrapper is not None and (*path[:wrapper], "name") in paths:
            continue  # settings of two different components
        if path[0] == "tasks" and len(path) == 2:
            continue  # only one run has the task; the difference in task_instance is listed already
        lines.append(_difference(path, old, new))
    return lines


def _difference(path: Sequence[str], old: Any, new: Any) -> str:
    if tuple(path[-2:]) == ("train_file", "digest"):
        return f"{setting_name(path[:-1])}: its contents or the settings of its reader have changed"
    origin = f" (derived from {DERIVED[path[-1]]})" if path[-1] in DERIVED else ""
    name = setting_name(path)
    return f"{name}: {_name_of(old)!r} in the checkpoint, {_name_of(new)!r} in this run{origin}"


def _name_of(value: Any) -> Any:
    return value["name"] if _is_component(value) else value


def optimizer_tensors(
    optimizer: torch.optim.Optimizer, parameters: Mapping[str, Tensor]
) -> dict[str, Tensor]:
    """Return the optimizer's state as `<parameter>/<entry>`, for parameters that have any."""
    # By identity, since `==` of tensors compares their values.
    names = {id(parameter): name for name, parameter in parameters.items()}
    return {
        f"{names[id(parameter)]}/{entry}": value
        for parameter, state in optimizer.state.items()
        for entry, value in state.items()
    }


def restore_optimizer(
    optimizer: torch.optim.Optimizer, parameters: Mapping[str, Tensor], tensors: Mapping[str, Tensor]
) -> None:
    """Restore the state that `optimizer_tensors` returned; entries are moved to their parameter's device.

    Step counters are moved too if a kernel reads them (fused or capturable groups); others stay on the CPU.
    """
    read_by_kernel = {
        id(parameter)
        for group in optimizer.param_groups
        if group.get("fused") or group.get("capturable")
        for parameter in group["params"]
    }
    # Not with `load_state_dict`, which identifies parameters only by their order.
    optimizer.state.clear()
    for key, value in tensors.items():
        name, _, entry = key.rpartition("/")
        parameter = parameters[name]
        if value.shape == parameter.shape or id(parameter) in read_by_kernel:
            value = value.to(parameter.device)
        optimizer.state[parameter][entry] = value
