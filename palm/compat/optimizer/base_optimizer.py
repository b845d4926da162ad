"""Base class for custom optimizers written for PaddlePALM 2.x: `_build`, with weight decay by the trainer."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch import nn

from palm import optimizer


class Optimizer(optimizer.Optimizer):
    """The base class of optimizers in PaddlePALM 2.x.

    A subclass has the method `_build`, which returns a torch optimizer of the parameters in `_prog`. As in
    2.x, weight decay is applied by the trainer: with `build_backward(weight_decay=…)`, parameters that decay
    are multiplied by `1 − rate · weight_decay` after the step.

    Args:
        loss_var: return value of the trainer's `build_forward`.
        lr: base learning rate, multiplied by the schedule.
        lr_schedualer: factor of the rate by step; None for a constant rate.
    """

    def __init__(self, loss_var: Any, lr: float, lr_schedualer: Callable[[int], float] | None = None) -> None:
        self._loss = loss_var
        self._lr = lr
        self._lr_schedualer = lr_schedualer
        self.learning_rate = lr
        self.grad_clip = None
        self.lr_scheduler = lr_schedualer
        self.weight_decay = 0.0
        self._prog: list[tuple[str, nn.Parameter]] = []

    @abstractmethod
    def _build(self, grad_clip: float | None = None) -> torch.optim.Optimizer:
        """Create the torch optimizer of `_prog`, without the schedule."""

    def _set_prog(self, prog: list[tuple[str, nn.Parameter]], init_prog: object) -> None:  # noqa: ARG002
        """Set the named parameters, which replace Paddle's program."""
        self._prog = prog
        if (set_prog := getattr(self._lr_schedualer, "_set_prog", None)) is not None:
            set_prog(prog)

    def build(self, named_parameters: Iterable[tuple[str, nn.Parameter]]) -> torch.optim.Optimizer:
        """Create the optimizer of `_build`, with weight decay after its step."""
        self._set_prog(list(named_parameters), None)
        built = self._build(self.grad_clip)

        @torch.no_grad()
        def decay(optimizer: torch.optim.Optimizer, *_: Any) -> None:
            for group in optimizer.param_groups:
                for parameter in group["params"]:
                    if parameter.grad is not None and parameter.ndim > 1:
                        parameter.mul_(1 - group["lr"] * self.weight_decay)

        if self.weight_decay:
            built.register_step_post_hook(decay)
        return built


BaseOptimizer = Optimizer
"""The name in some versions of PaddlePALM."""
