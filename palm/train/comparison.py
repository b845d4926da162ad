"""The values that a checkpoint and a run that resumes from it must have in common."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from palm.backbone import BACKBONES
from palm.backbone.low_rank import DEFAULTS, FROM
from palm.config.run import described, plain
from palm.lr_sched import LR_SCHEDULES, Schedule
from palm.mixing import MIXINGS
from palm.mixing.balance import BALANCES
from palm.optimizer import OPTIMIZERS
from palm.paradigm import HEADS, Head
from palm.train.loop import Training
from palm.train.task import TaskState


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
        "tf32": settings.tf32,
    }
    if own_seeds:
        found["seeds"] = own_seeds
    if parts.mixing.follows_scores:  # draws depend on evaluations
        found |= {name: getattr(settings, name) for name in ("eval_every_n_steps", "eval_every_epoch")}
        evaluated = (task for task in parts.tasks if task.dev_file is not None)
        found["metrics"] = {task.name: list(task.metric_names) for task in evaluated}
    return found


def described_schedule(schedule: Callable[[int], float]) -> Any:
    """Return the name and the settings of the simplest equivalent schedule, or the path of a function."""
    return described(LR_SCHEDULES, schedule.simplest()) if isinstance(schedule, Schedule) else plain(schedule)


def _compared_tasks(training: Training) -> dict[str, dict[str, Any]]:
    owners: dict[Head, str] = {}
    # Tasks that share a head differ from tasks with equal heads, so each names the owner of its head.
    tasks = {
        task.name: {**_compared_task(task), "head_of": owners.setdefault(task.head, task.name)}
        for task in training.tasks
    }
    plan = training.plan
    binding = plan.mixing.binding_plan(plan.primary_tasks, plan.count)
    for task, steps in zip(plan.primary_tasks, binding or (), strict=binding is not None):
        tasks[task.name]["expected_steps"] = steps
    return tasks


def _compared_task(state: TaskState) -> dict[str, Any]:
    task = state.task
    own: dict[str, Any] = {}
    if task.share_rows_with:
        own["share_rows_with"] = task.share_rows_with
    if task.private_layers:
        own["private_layers"] = task.private_layers
    if task.lora is not None:
        # With defaults filled in, so giving a default explicitly does not make another run.
        own["lora"] = plain(dict(task.lora) if FROM in task.lora else {**DEFAULTS, **task.lora})
    names = ("max_tokens_per_batch", "gradient_accumulation_steps", "mix_ratio", "is_target", "shuffle")
    rates = ("loss_weight", "learning_rate_factor", "head_learning_rate")
    return {
        **own,
        "batch_size": task.batch_size if task.max_tokens_per_batch is None else None,
        "devices": state.stream.world_size,
        **{name: getattr(task, name) for name in (*names, *rates)},
        "paradigm": described(HEADS, task.head),
        # The digest of the rows covers file, vocabulary and reader; paths may differ between programs.
        "train_file": {"rows": len(state.stream.rows), "digest": state.stream.rows.digest},
    }
