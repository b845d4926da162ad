"""Weights of the tasks in a loss, from losses or gradients."""

from __future__ import annotations

import copy
import math
from abc import ABC
from collections.abc import Sequence
from typing import Any, ClassVar

import numpy as np
from torch import Tensor

from palm.core.component import Component, Registry, positive_problems, raise_any

__all__ = ["BALANCES", "DWA", "FAMO", "Balance", "PCGrad", "Uncertainty"]


class Balance(Component, ABC):
    """A balancing method. Everything it learns is in `state`, JSON-ready, for checkpoints.

    Attributes:
        needs_gradients: True if factors come from `of_gradients`, which reads the dot products of the tasks'
            gradients; otherwise from `of_losses`, which uses the losses that `observe` received.
        state: name -> task -> values.
    """

    needs_gradients: ClassVar[bool] = False

    def __init__(self) -> None:
        """Without settings; methods may add some."""
        self.state: dict[str, dict[str, Any]] = {}

    def of_losses(self, tasks: Sequence[str]) -> list[float]:
        """Return the factor of every loss in the next step; 1 each if the method does not use losses."""
        return [1.0] * len(tasks)

    def of_gradients(self, tasks: Sequence[str], gramian: Tensor, draws: np.random.Generator) -> list[float]:  # noqa: ARG002
        """Return the factor of every gradient.

        Args:
            tasks: the tasks of the step.
            gramian: the dot products of their gradients, averaged over ranks, float64[tasks, tasks].
            draws: source of random numbers.
        """
        return [1.0] * len(tasks)

    def observe(self, tasks: Sequence[str], losses: Sequence[float]) -> None:
        """Process the losses of a step, computed before its update."""

    def table(self, name: str) -> dict[str, Any]:
        """Return the part of the state with this name, created if necessary."""
        return self.state.setdefault(name, {})

    def state_dict(self) -> dict[str, Any]:
        """Return the state, JSON-ready."""
        return copy.deepcopy(self.state)

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restore the state that `state_dict` returned."""
        self.state = copy.deepcopy(state)

    def reset(self) -> None:
        """Clear the state at the start of a run."""
        self.state = {}


BALANCES: Registry[type[Balance]] = Registry("balancing method", Balance, "balance")


class LearnedBalance(Balance):
    """Base class of methods whose weights are learned along with the model.

    Args:
        balance_rate: learning rate of the weights of uncertainty and famo.
    """

    def __init__(self, balance_rate: float = 0.025) -> None:
        super().__init__()
        raise_any(positive_problems(balance_rate=balance_rate))
        self.rate = balance_rate


@BALANCES.register("uncertainty")
class Uncertainty(LearnedBalance):
    """A loss L has the weight `exp(-s)`, where s is learned along with the model to minimize `exp(-s) L + s`.

    s approaches log L, so all tasks have about the same influence, regardless of the scale of their losses.

    Source: Kendall et al., 2018, arXiv:1705.07115, with plain gradient steps on s, each clipped to the rate.
    """

    def of_losses(self, tasks: Sequence[str]) -> list[float]:
        """Return `exp(-s)` for each task, initially 1."""
        return [math.exp(-self.table("s").get(task, 0.0)) for task in tasks]

    def observe(self, tasks: Sequence[str], losses: Sequence[float]) -> None:
        """Update s by a step against its gradient, `1 - exp(-s) L`."""
        s = self.table("s")
        for task, loss in zip(tasks, losses, strict=True):
            now = s.get(task, 0.0)
            # The gradient is clipped, so a single huge loss does not change s much.
            s[task] = now - self.rate * min(max(1 - math.exp(-now) * loss, -1.0), 1.0)


@BALANCES.register("dwa")
class DWA(Balance):
    """Dynamic weight average: tasks whose losses fall slowly get larger weights.

    The factor is `K exp(r / T) / Σ exp(r / T)` over the K tasks of the step, with T = 2, where r is
    the mean loss of the task's last 100 steps divided by that of the 100 before; 1 until both are known.

    Source: Liu et al., 2019, arXiv:1803.10704, equation 7.
    """

    TEMPERATURE = 2.0
    STEPS = 100  # the paper uses an epoch

    def of_losses(self, tasks: Sequence[str]) -> list[float]:
        """Return the factors by the last two complete means."""
        means = self.table("means")
        known = {task: means[task] for task in tasks if len(means.get(task, ())) == 2 and means[task][0] > 0}
        if len(known) < len(tasks):
            return [1.0] * len(tasks)
        exponentials = [math.exp(known[task][1] / known[task][0] / self.TEMPERATURE) for task in tasks]
        return [len(tasks) * each / sum(exponentials) for each in exponentials]

    def observe(self, tasks: Sequence[str], losses: Sequence[float]) -> None:
        """Add the losses to the running sums, and store a mean after every 100 steps."""
        sums = self.table("sums")
        means = self.table("means")
        for task, loss in zip(tasks, losses, strict=True):
            total, count = sums.get(task, (0.0, 0))
            sums[task] = [total + loss, count + 1]
            if count + 1 == self.STEPS:
                # Only the last two means are compared.
                means[task] = [*means.get(task, []), (total + loss) / self.STEPS][-2:]
                sums[task] = [0.0, 0]


@BALANCES.register("famo")
class FAMO(LearnedBalance):
    """Factors `z / L` that let all losses fall at the same relative speed; z grows for tasks that lag.

    z is the softmax of logits, which are updated by the decrease in the logarithms of the losses from one
    step of a task to its next; the factors sum to the number of tasks.

    Source: Liu et al., 2023, arXiv:2306.03792, algorithm 1, with plain gradient steps. L is the loss of the
    task's previous step, and its decrease is measured from there to the present step, whereas the paper
    computes each batch twice.
    """

    DECAY = 0.001  # decay of the logits towards 0

    def of_losses(self, tasks: Sequence[str]) -> list[float]:
        """Return factors proportional to `z / L`; 1 each until all losses are known."""
        losses = self.table("losses")
        if any(losses.get(task, 0.0) <= 0 for task in tasks):
            return [1.0] * len(tasks)
        # The gradient of log L is that of L divided by L.
        slopes = [share / losses[task] for task, share in zip(tasks, self._shares(tasks), strict=True)]
        return [len(tasks) * slope / sum(slopes) for slope in slopes]

    def observe(self, tasks: Sequence[str], losses: Sequence[float]) -> None:
        """Update the logits along the gradient of the softmax, towards tasks whose losses fell less."""
        known = self.table("losses")
        logits = self.table("logits")
        if all(known.get(task, 0.0) > 0 < loss for task, loss in zip(tasks, losses, strict=True)):
            falls = [math.log(known[task] / loss) for task, loss in zip(tasks, losses, strict=True)]
            shares = self._shares(tasks)
            mean = sum(share * fall for share, fall in zip(shares, falls, strict=True))
            for task, share, fall in zip(tasks, shares, falls, strict=True):
                now = logits.get(task, 0.0)
                logits[task] = now - self.rate * (share * (fall - mean) + self.DECAY * now)
        known.update(zip(tasks, losses, strict=True))

    def _shares(self, tasks: Sequence[str]) -> list[float]:
        exponentials = [math.exp(self.table("logits").get(task, 0.0)) for task in tasks]
        return [each / sum(exponentials) for each in exponentials]


@BALANCES.register("pcgrad")
class PCGrad(Balance):
    """The sum of the gradients, each without its components that conflict with the others, in random order.

    Source: Yu et al., 2020, arXiv:2001.06782, algorithm 1, computed from the gradients' dot products.
    """

    needs_gradients = True

    def of_gradients(self, tasks: Sequence[str], gramian: Tensor, draws: np.random.Generator) -> list[float]:
        """Return the sum of the projected gradients as factors of the gradients."""
        products = gramian.numpy()
        factors = np.zeros(len(tasks))
        for task in range(len(tasks)):
            own = np.eye(len(tasks))[task]
            for other in draws.permutation(len(tasks)):
                conflict = products[other] @ own
                if other != task and conflict < 0:
                    own[other] -= conflict / products[other, other]
            factors += own
        return [float(factor) for factor in factors]
