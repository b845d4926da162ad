"""The training configuration as one value, and the part of it that must match to resume."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch

from palm.backbone import BACKBONES, Backbone
from palm.backbone.low_rank import DEFAULTS, FROM
from palm.balance import BALANCES, Balance
from palm.config.values import flattened
from palm.core.component import Component
from palm.core.numerics.precision import Choice, choice
from palm.core.registry import Registry
from palm.distributed.replica import Parallel
from palm.engine.training.planning import StepPlan, TasksPerStep
from palm.engine.training.task import Task
from palm.lr_sched import LR_SCHEDULES, Schedule
from palm.mixing import MIXINGS, Mixing, MixRatio
from palm.optimizer import OPTIMIZERS, Optimizer, ParameterGroups
from palm.paradigm import HEADS, Head
from palm.reader import READERS


@dataclass(frozen=True, kw_only=True)
class Recipe:
    """A run before its first step; `palm.engine.training.build.start` makes it one.

    Args:
        backbone: the shared encoder.
        tasks: their streams are open and their steps are planned.
        optimizer: its settings.
        schedule: factor of the learning rate by global step, from 0.
        groups: what is frozen, and rates of parts of the model.
        mixing: which task a step trains.
        tasks_per_step: how many distinct tasks a step trains, or all of them.
        max_steps: the run has this many steps at most; None for no limit.
        balance: how the tasks of a step are weighed against each other; None sums up their losses.
        ema_decay: decay of the moving averages of the weights; None to keep none.
        seed: decides everything that is drawn.
        device: where the run computes.
        precision: compute in fp32 or bf16, or in what is fast on the device (auto).
        chosen: the precision of a run that has started, with the reason.
        tf32: let NVIDIA GPUs multiply float32 matrices in TensorFloat-32; None leaves it as torch has it.
        deterministic: take kernels that add in a fixed order.
        parallel: what every device has of the parameters, see `Replica`.
        activation_checkpointing: compute activations again in the backward pass.
        eval_every_n_steps: how often tasks are evaluated; it counts where draws follow dev scores.
        eval_every_epoch: whether they are evaluated after every epoch; likewise.
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
        """The plan of its steps, by what its tasks expect now."""
        return StepPlan(
            tasks=[task.progress(0) for task in self.tasks],
            mixing=self.mixing,
            tasks_per_step=self.tasks_per_step,
            max_steps=self.max_steps,
        )


def identity(recipe: Recipe) -> dict[str, Any]:
    """Return what the losses of a run depend on, JSON-ready; it must match to resume from a checkpoint.

    Components stand under their registry names (others under their dotted path) with all their settings, so
    it does not matter which door put them together.

    How long a run is does not belong to it, except where its losses depend on that: the steps until the end
    are settings of a schedule that falls towards it, and the planned steps count if draws depend on them. So
    a run of whole epochs with a constant rate may be continued for more, and one whose rate falls to 0 at its
    end may not.
    """
    tasks = _tasks_identity(recipe)
    # A seed of its own that is the run's changes no order, and so is not another run.
    own_seeds = {t.name: t.seed for t in recipe.tasks if t.seed not in (None, recipe.seed)}
    schedule = recipe.schedule.simplest() if isinstance(recipe.schedule, Schedule) else recipe.schedule
    return {
        "task_instance": list(tasks),  # tasks in another order are drawn otherwise
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
    # Two tasks on one head are another run than two with equal heads, so each names the owner of its head.
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
    """Describe the evaluations, where draws follow their scores."""
    if not recipe.mixing.follows_scores:
        return {}
    metrics = {task.name: list(task.metric_names) for task in recipe.tasks if task.dev_file is not None}
    return {
        "eval_every_n_steps": recipe.eval_every_n_steps,
        "eval_every_epoch": recipe.eval_every_epoch,
        "metrics": metrics,
    }


def _task_identity(task: Task) -> dict[str, Any]:
    assert task.stream is not None, "the training data is not loaded"
    optional: dict[str, Any] = {
        "share_rows_with": task.share_rows_with,
        "private_layers": task.private_layers,
    }
    own = {name: value for name, value in optional.items() if value}
    if task.lora is not None:
        # With the defaults, so that leaving a setting out and writing its default down is the same run.
        own["lora"] = _plain(dict(task.lora) if FROM in task.lora else {**DEFAULTS, **task.lora})
    return {
        **own,
        "batch_size": task.batch_size if task.max_tokens_per_batch is None else None,
        "max_tokens_per_batch": task.max_tokens_per_batch,
        "gradient_accumulation_steps": task.gradient_accumulation_steps,
        "devices": task.stream.num_ranks,
        "mix_ratio": task.mix_ratio,
        "is_target": task.is_target,
        "shuffle": task.shuffle,
        "loss_weight": task.loss_weight,
        "learning_rate_factor": task.learning_rate_factor,
        "head_learning_rate": task.head_learning_rate,
        "paradigm": named(HEADS, task.head),
        # The rows tell what file, vocabulary and reader they come from; paths may differ between programs.
        "train_file": {"rows": len(task.stream.rows), "digest": task.stream.rows.digest},
    }


def recipe_sections(recipe: Recipe) -> dict[str, Any]:
    """Return the same in the sections of a resolved configuration: `global`, `tasks` and `backbone`."""
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
    """A component by its registry name, or dotted path, and its settings, JSON-ready."""
    return {"name": registry.name_of(type(component)), "settings": _plain(component.settings)}


def _plain(value: Any) -> Any:
    """A setting as JSON has it; a function or class by its dotted path, other objects by their class's."""
    if isinstance(value, Mapping):
        return {str(name): _plain(item) for name, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [_plain(item) for item in value]
    if value is None or isinstance(value, (str, int, float)):
        return value
    if isinstance(value, Path):
        return str(value)
    # A function has no settings to compare; its name is what two programs can agree on.
    owner = value if hasattr(value, "__qualname__") else type(value)
    return f"{owner.__module__}.{owner.__qualname__}"
