"""From settings to what a step updates: some parameters are frozen, the others get an optimizer and rates."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import nn

from palm.core.errors import ConfigError
from palm.engine.model import MultiTaskModel
from palm.engine.task import Task
from palm.optimizer import Optimizer, ParameterGroups


def build_optimizer(
    optimizer: Optimizer, groups: ParameterGroups, model: MultiTaskModel, tasks: Sequence[Task]
) -> torch.optim.Optimizer:
    """The torch optimizer of the parameters that move; the others are frozen from now on.

    Args:
        optimizer: its settings.
        groups: what is frozen, and rates of parts of the model.
        model: where it is trained.
        tasks: some have rates for their heads.

    Raises:
        ConfigError: a layer, or a parameter, that does not exist; or two rates for one head.
    """
    frozen = groups.frozen([name for name, _ in model.named_parameters()], model.parameter_layers)
    for name, parameter in model.named_parameters():
        if name in frozen:
            parameter.requires_grad_(False)
    moving = moving_parameters(model)
    layers = [model.parameter_layers()] if optimizer.needs_layers else []
    built = optimizer.build(moving, *layers)
    groups.apply(built, moving, optimizer.learning_rate, _head_rates(model, tasks))
    return built


def moving_parameters(model: nn.Module) -> list[tuple[str, nn.Parameter]]:
    """The parameters that are not frozen, with their names."""
    return [(name, parameter) for name, parameter in model.named_parameters() if parameter.requires_grad]


def _head_rates(model: MultiTaskModel, tasks: Sequence[Task]) -> dict[str, float]:
    rates: dict[str, float] = {}
    owner: dict[str, Task] = {}
    for task in tasks:
        start = f"{model.head_places[task.name]}."
        other = owner.setdefault(start, task)
        if other.head_learning_rate != task.head_learning_rate:
            raise ConfigError(
                [
                    f"tasks {other.name!r} and {task.name!r} share a head; give them the same "
                    f"head_learning_rate, not {other.head_learning_rate!r} and {task.head_learning_rate!r}"
                ]
            )
        if task.head_learning_rate is not None:
            rates[start] = task.head_learning_rate
    return rates
