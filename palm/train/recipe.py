"""The configuration of a run as one value, and the part of it that must match to resume."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch

from palm.backbone import BACKBONES, Backbone
from palm.backbone.low_rank import DEFAULTS, FROM
from palm.config.values import flattened
from palm.core.component import Component
from palm.core.numerics.precision import Choice, choice
from palm.core.registry import Registry
from palm.lr_sched import LR_SCHEDULES, Schedule
from palm.mixing import MIXINGS, Mixing, MixRatio
from palm.mixing.balance import BALANCES, Balance
from palm.optimizer import OPTIMIZERS, Optimizer, ParameterGroups
from palm.paradigm import HEADS, Head
from palm.parallel.replica import Parallel
from palm.reader import READERS
from palm.train.planning import StepPlan, TasksPerStep
from palm.train.task import Task


@dataclass(frozen=True, kw_only=True)
class Recipe:
    """The configuration of a run; `palm.train.build.start` starts it.

    Args:
        backbone: the shared encoder.
        tasks: the tasks, with open streams and planned steps.
        optimizer: its settings.
        schedule: global step, from 0 -> factor of the learning rate.
        groups: frozen parts and learning rates of parts of the model.
        mixing: chooses the tasks of a step.
        tasks_per_step: number of distinct tasks in a step, or 'all'.
        max_steps: maximum number of steps; None for no limit.
        balance: weights the tasks of a step against each other; None: their losses are summed.
        ema_decay: decay of the moving averages of the weights; None: no averages.
        seed: seed of all random draws.
        device: the device that computes.
        precision: fp32, bf16, or auto for the faster of both on the device.
        chosen: the precision of a run that has started, with the reason.
        tf32: let NVIDIA GPUs multiply float32 matrices in TensorFloat-32; None: torch's own setting.
        deterministic: use kernels that add in a fixed order.
        parallel: how parameters are distributed over devices (see `Replica`).
        activation_checkpointing: recompute activations in the backward pass.
        eval_every_n_steps: interval of evaluations; it affects the losses if draws follow dev scores.
        eval_every_epoch: evaluate after every epoch; it affects the losses in the same case.
    """

    backbone: Backbone
    tasks: Sequence[Task]
    optimizer: Optimizer
    schedule: Schedule | Callable[[int], float]
    groups: ParameterGroups = field(default_factory=ParameterGroups)
    mixing: Mixing = field(default_factory=MixRatio)
    tasks_per_step: TasksPerStep = 1
    max_steps: int | None = None
    balance: Balance | None = None
    ema_decay: float | None = None
    seed: int = 1
    device: torch.device = field(default_factory=lambda: torch.device("cpu"))
    precision: str = "auto"
    chosen: Choice | None = None
    tf32: bool | None = None
    deterministic: bool = False
    parallel: Parallel = "ddp"
    activation_checkpointing: bool = False
    eval_every_n_steps: int = -1
    eval_every_epoch: bool = False

    @property
    def plan(self) -> StepPlan:
        """The plan of its steps, from the present expected steps of its tasks."""
        return StepPlan(
            tasks=[task.progress(0) for task in self.tasks],
            mixing=self.mixing,
            tasks_per_step=self.tasks_per_step,
            max_steps=self.max_steps,
        )


def identity(recipe: Recipe) -> dict[str, Any]:
    """Return everything that the losses of a run depend on, JSON-ready; it must match to resume.

    Components are named by their registry names (others by their dotted path) with all their settings, so the
    identity is the same from both interfaces.

    The length of a run is not part of it unless the losses depend on the length: the total number of steps
    is a setting of a schedule that falls towards the end, and planned steps are included if draws depend on
    them. So a run with a constant rate can be continued for more epochs, but not one whose rate falls to 0.
    """
    tasks = _tasks_identity(recipe)
    # A task's own seed that equals the run's changes nothing, so it does not make another run.
    own_seeds = {t.name: t.seed for t in recipe.tasks if t.seed not in (None, recipe.seed)}
    schedule = recipe.schedule.simplest() if isinstance(recipe.schedule, Schedule) else recipe.schedule
    return {
        "task_instance": list(tasks),  # draws depend on the order of tasks
        "tasks": tasks,
        "backbone": named(BACKBONES, recipe.backbone),
        "optimizer": named(OPTIMIZERS, recipe.optimizer),
        **_plain(recipe.groups.settings),
        "lr_scheduler": named(LR_SCHEDULES, schedule) if isinstance(schedule, Schedule) else _plain(schedule),
        "mixing": named(MIXINGS, recipe.mixing),
        "tasks_per_step": recipe.tasks_per_step,
        "balance": None if recipe.balance is None else named(BALANCES, recipe.balance),
        "ema_decay": recipe.ema_decay,
        "random_seed": recipe.seed,
        "precision": (recipe.chosen or choice(recipe.precision, recipe.device)).precision,
        **({"seeds": own_seeds} if own_seeds else {}),
        "tf32": recipe.tf32,
        **_evaluation_identity(recipe),
    }


def _tasks_identity(recipe: Recipe) -> dict[str, dict[str, Any]]:
    owners: dict[Head, str] = {}
    # Tasks that share a head differ from tasks with equal heads, so each names the owner of its head.
    tasks = {
        task.name: {**_task_identity(task), "head_of": owners.setdefault(task.head, task.name)}
        for task in recipe.tasks
    }
    plan = recipe.plan
    binding = recipe.mixing.binding_plan(plan.primary_tasks, plan.count)
    for task, steps in zip(plan.primary_tasks, binding or (), strict=binding is not None):
        tasks[task.name]["expected_steps"] = steps
    return tasks


def _evaluation_identity(recipe: Recipe) -> dict[str, Any]:
    """Describe the evaluations if draws follow their scores."""
    if not recipe.mixing.follows_scores:
        return {}
    metrics = {task.name: list(task.metric_names) for task in recipe.tasks if task.dev_file is not None}
    return {
        "eval_every_n_steps": recipe.eval_every_n_steps,
        "eval_every_epoch": recipe.eval_every_epoch,
        "metrics": metrics,
    }


def _task_identity(task: Task) -> dict[str, Any]:
    stream = task.loaded_stream
    optional: dict[str, Any] = {
        "share_rows_with": task.share_rows_with,
        "private_layers": task.private_layers,
    }
    own = {name: value for name, value in optional.items() if value}
    if task.lora is not None:
        # With defaults filled in, so giving a default explicitly does not make another run.
        own["lora"] = _plain(dict(task.lora) if FROM in task.lora else {**DEFAULTS, **task.lora})
    return {
        **own,
        "batch_size": task.batch_size if task.max_tokens_per_batch is None else None,
        "max_tokens_per_batch": task.max_tokens_per_batch,
        "gradient_accumulation_steps": task.gradient_accumulation_steps,
        "devices": stream.world_size,
        "mix_ratio": task.mix_ratio,
        "is_target": task.is_target,
        "shuffle": task.shuffle,
        "loss_weight": task.loss_weight,
        "learning_rate_factor": task.learning_rate_factor,
        "head_learning_rate": task.head_learning_rate,
        "paradigm": named(HEADS, task.head),
        # The digest of the rows covers file, vocabulary and reader; paths may differ between programs.
        "train_file": {"rows": len(stream.rows), "digest": stream.rows.digest},
    }


def recipe_sections(recipe: Recipe) -> dict[str, Any]:
    """Return the identity in the sections of a resolved configuration: `global`, `tasks` and `backbone`."""
    facts = identity(recipe)
    own = facts.pop("tasks")
    readers = {task.name: named(READERS, task.reader) for task in recipe.tasks}
    backbone = facts.pop("backbone")
    return {
        "global": {**flattened(facts), "backbone": backbone["name"]},
        "tasks": {name: flattened({"reader": readers[name], **own[name]}) for name in own},
        "backbone": backbone["settings"],
    }


def named(registry: Registry[Any], component: Component) -> dict[str, Any]:
    """Describe a component by its registry name or dotted path and its settings, JSON-ready."""
    return {"name": registry.name_of(type(component)), "settings": _plain(component.settings)}


def _plain(value: Any) -> Any:
    """Convert a setting to JSON; functions and classes become their dotted path, objects their class's."""
    if isinstance(value, Mapping):
        return {str(name): _plain(item) for name, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [_plain(item) for item in value]
    if value is None or isinstance(value, (str, int, float)):
        return value
    if isinstance(value, Path):
        return str(value)
    # A function has no settings to compare, only a name.
    owner = value if hasattr(value, "__qualname__") else type(value)
    return f"{owner.__module__}.{owner.__qualname__}"
