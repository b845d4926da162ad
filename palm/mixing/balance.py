"""Weights of the tasks in a loss, from losses or gradients."""

from __future__ import annotations

import copy
import math
from abc import ABC
from collections.abc import Sequence
from typing import Any, ClassVar

import numpy as np
import torch
from torch import Tensor

from palm.core.component import Component, Registry, positive_problems, raise_any
from palm.core.errors import ConfigError, about

__all__ = ["BALANCES", "DWA", "FAMO", "MGDA", "Balance", "CAGrad", "PCGrad", "UPGrad", "Uncertainty"]


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


class GradientBalance(Balance):
    """A stateless weighting from torchjd, which computes factors from the gradients' dot products.

    Attributes:
        weighting: name of its class in `torchjd.aggregation`.
        options: arguments of that class.

    Raises:
        ConfigError: torchjd or its solver is not installed.
    """

    needs_gradients = True
    weighting: ClassVar[str]
    options: ClassVar[dict[str, Any]] = {}

    def __init__(self) -> None:
        super().__init__()
        try:
            from torchjd import aggregation

            self._weighting = getattr(aggregation, self.weighting)(**self.options)
        except ImportError as error:
            raise ConfigError(
                about(
                    "balance",
                    f": {type(self).__name__} needs torchjd: pip install 'palm-torch[balance]' ({error})",
                )
            ) from None

    def of_gradients(self, tasks: Sequence[str], gramian: Tensor, draws: np.random.Generator) -> list[float]:
        """Compute the factors; torchjd's random numbers are seeded from `draws`."""
        # Some weightings divide by a gradient's norm, so tasks with zero gradients are omitted.
        nonzero = [k for k in range(len(tasks)) if float(gramian[k, k]) > 0]
        factors = [1.0] * len(tasks)
        if len(nonzero) > 1:
            with torch.random.fork_rng(devices=[]):
                # torchjd uses torch's global generator; the context restores it, so dropout is not affected.
                torch.manual_seed(int(draws.integers(2**63)))
                weights = self._weighting(gramian[nonzero][:, nonzero]).tolist()
            for k, weight in zip(nonzero, weights, strict=True):
                factors[k] = weight
        return factors


@BALANCES.register("pcgrad")
class PCGrad(GradientBalance):
    """The sum of the gradients, each without its components that conflict with others (arXiv:2001.06782)."""

    weighting = "PCGradWeighting"


@BALANCES.register("cagrad")
class CAGrad(GradientBalance):
    """The direction near the mean gradient that most improves the worst task (arXiv:2110.14048)."""

    weighting = "CAGradWeighting"
    options: ClassVar[dict[str, Any]] = {"c": 0.5}


@BALANCES.register("mgda")
class MGDA(GradientBalance):
    """The shortest vector among all convex combinations of the gradients (arXiv:1810.04650)."""

    weighting = "MGDAWeighting"


@BALANCES.register("upgrad")
class UPGrad(GradientBalance):
    """The mean of the gradients after projecting each so that no other loss increases (arXiv:2406.16232)."""

    weighting = "UPGradWeighting"
