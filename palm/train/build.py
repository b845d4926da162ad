"""Building a run from its recipe: model, replica, optimizer and averages."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from typing import Any

import torch
from torch import nn

from palm.core.checks import raise_any
from palm.core.errors import ConfigError
from palm.core.logging import logger
from palm.core.numerics.malloc import keep_freed_memory
from palm.core.numerics.precision import choice
from palm.core.threads import waiting
from palm.optimizer import Optimizer, ParameterGroups
from palm.parallel.group import broadcast
from palm.parallel.replica import Replica
from palm.train.ema import ExponentialMovingAverage
from palm.train.loop import Training
from palm.train.model import PRIVATE, MultiTaskModel
from palm.train.planning import step_problems
from palm.train.recipe import Recipe
from palm.train.task import Task


def start(recipe: Recipe) -> Training:
    """Build the run that a recipe describes, before its first step.

    Raises:
        ConfigError: this model or device does not support a setting of the recipe.
    """
    weighing = None if recipe.balance is None else type(recipe.balance).__name__
    raise_any(step_problems(recipe.tasks_per_step, weighing, recipe.tasks))
    if recipe.balance is not None:
        recipe.balance.reset()
    # Encoders that compute padding compute less of it if the rows of a batch have similar lengths.
    if recipe.backbone.wants_even_lengths:
        for task in recipe.tasks:
            if task.stream is not None:
                task.stream.group_by_length()
    model = MultiTaskModel(recipe.backbone, recipe.tasks)
    model.to(recipe.device)
    if recipe.device.type == "cpu":
        keep_freed_memory()
        logger.info("CPU threads: %d; while they wait: %s.", torch.get_num_threads(), waiting())
    chosen = broadcast(partial(choice, recipe.precision, recipe.device))
    recipe = replace(recipe, chosen=chosen)
    model.precision = chosen.precision
    logger.info("Computing in %s on %s (%s).", chosen.precision, recipe.device.type, chosen.reason)
    if recipe.activation_checkpointing:
        recipe.backbone.checkpoint_activations()
    # FSDP replaces parameters, so the replica is built before everything that refers to them.
    replica = Replica(model, recipe.parallel)
    optimizer = build_optimizer(recipe.optimizer, recipe.groups, model, recipe.tasks)
    ema = None
    if recipe.ema_decay is not None:
        ema = ExponentialMovingAverage(moving_parameters(model), recipe.ema_decay)
    return Training(recipe, model=model, replica=replica, optimizer=optimizer, ema=ema)


def build_optimizer(
    optimizer: Optimizer, groups: ParameterGroups, model: MultiTaskModel, tasks: Sequence[Task]
) -> torch.optim.Optimizer:
    """Freeze parameters, and build the torch optimizer of the others.

    Args:
        optimizer: its settings.
        groups: frozen parts and learning rates of parts of the model.
        model: the model, on its device.
        tasks: the tasks, which may have learning rates for their heads.

    Raises:
        ConfigError: a layer or parameter does not exist, or a head has two learning rates.
    """
    frozen = groups.frozen([name for name, _ in model.named_parameters()], model.parameter_layers)
    for name, parameter in model.named_parameters():
        if name in frozen:
            parameter.requires_grad_(False)
    moving = moving_parameters(model)
    layers = [model.parameter_layers()] if optimizer.needs_layers else []
    built = optimizer.build(moving, *layers)
    factors: dict[str, float] = {}
    decays: dict[str, float] = {}
    for task, place in model.head_places.items():
        head = model.head(task)
        factors |= {f"{place}.{name}": factor for name, factor in head.rate_factors.items()}
        decays |= {f"{place}.{name}": part for name, part in head.l2_decays.items()}
    rates = _head_rates(model, tasks)
    if groups.backbone_learning_rate is not None:
        rates[PRIVATE] = groups.backbone_learning_rate
    groups.apply(built, moving, optimizer.learning_rate, rates, factors)
    _decay(built, [(parameter, decays[name]) for name, parameter in moving if name in decays])
    return built


def _decay(optimizer: torch.optim.Optimizer, decaying: Sequence[tuple[nn.Parameter, float]]) -> None:
    """Add L2 decay to the gradients of some parameters, each with its own factor."""

    def add_decay(*_: Any) -> None:
        for parameter, part in decaying:
            if parameter.grad is not None:
                parameter.grad.add_(parameter.detach(), alpha=part)

    if decaying:
        # A hook of the optimizer runs after clipping, as in PaddlePALM 2.x.
        optimizer.register_step_pre_hook(add_decay)


def moving_parameters(model: nn.Module) -> list[tuple[str, nn.Parameter]]:
    """Return the parameters that are not frozen, with their names."""
    return [(name, parameter) for name, parameter in model.named_parameters() if parameter.requires_grad]


def _head_rates(model: MultiTaskModel, tasks: Sequence[Task]) -> dict[str, float]:
    rates: dict[str, float] = {}
    owner: dict[str, Task] = {}
    for task in tasks:
        start = f"{model.head_places[task.name]}."
        other = owner.setdefault(start, task)
        if other.head_learning_rate != task.head_learning_rate:
            raise ConfigError(
                f"tasks {other.name!r} and {task.name!r} share a head; give them the same "
                f"head_learning_rate, not {other.head_learning_rate!r} and {task.head_learning_rate!r}"
            )
        if task.head_learning_rate is not None:
            rates[start] = task.head_learning_rate
    return rates
