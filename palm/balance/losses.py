"""Methods that weigh losses by those of earlier steps, which costs a step nothing."""

from __future__ import annotations

import math
from collections.abc import Sequence

from palm.balance.base import BALANCES, Balance
from palm.core.checks import positive_problems, raise_any


class LearnedBalance(Balance):
    """Base of methods whose weights are learned beside the model.

    Args:
        balance_rate: of uncertainty and famo, the learning rate of their weights.
    """

    def __init__(self, balance_rate: float = 0.025) -> None:
        super().__init__()
        raise_any(positive_problems(balance_rate=balance_rate))
        self.rate = balance_rate


@BALANCES.register("uncertainty")
class Uncertainty(LearnedBalance):
    """A loss L counts `exp(-s)`, where s is learned beside the model to make `exp(-s) L + s` small.

    s goes towards log L, so every task comes to pull about equally, whatever the scale of its loss.

    Source: Kendall et al., 2018, arXiv:1705.07115, with plain gradient steps on s, each cut off at the rate.
    """

    def of_losses(self, tasks: Sequence[str]) -> list[float]:
        """`exp(-s)`; 1 at first."""
        return [math.exp(-self.table("s").get(task, 0.0)) for task in tasks]

    def observe(self, tasks: Sequence[str], losses: Sequence[float]) -> None:
        """Move s against its gradient, `1 - exp(-s) L`."""
        s = self.table("s")
        for task, loss in zip(tasks, losses, strict=True):
            now = s.get(task, 0.0)
            # Cut off, so that one huge loss does not throw s far away.
            s[task] = now - self.rate * min(max(1 - math.exp(-now) * loss, -1.0), 1.0)


@BALANCES.register("dwa")
class DWA(Balance):
    """Dynamic weight average: a task counts more, the more slowly its loss falls.

    The factor is `K exp(r / T) / Σ exp(r / T)` over the K tasks of the step, with T = 2, where r is
    the mean loss of the task's last 100 steps, divided by that of the 100 before; 1 until both are known.

    Source: Liu et al., 2019, arXiv:1803.10704, equation 7.
    """

    TEMPERATURE = 2.0
    STEPS = 100  # the paper takes an epoch

    def of_losses(self, tasks: Sequence[str]) -> list[float]:
        """Those of the last two whole means."""
        means = self.table("means")
        known = {task: means[task] for task in tasks if len(means.get(task, ())) == 2 and means[task][0] > 0}
        if len(known) < len(tasks):
            return [1.0] * len(tasks)
        heights = [math.exp(known[task][1] / known[task][0] / self.TEMPERATURE) for task in tasks]
        return [len(tasks) * height / sum(heights) for height in heights]

    def observe(self, tasks: Sequence[str], losses: Sequence[float]) -> None:
        """Add to the running sums, and make a mean of them when they are full."""
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
    """Losses fall at the same relative speed: `z / L`, where the shares z of tasks that lag grow.

    z is the softmax of logits that move by how much the logarithms of the losses fell from one step of a task
    to its next; the factors sum up to the number of tasks.

    Source: Liu et al., 2023, arXiv:2306.03792, algorithm 1, with plain steps, L the task's loss in its
    previous step and its fall from there to the present one: the paper computes each batch a second time.
    """

    DECAY = 0.001  # of the logits towards 0

    def of_losses(self, tasks: Sequence[str]) -> list[float]:
        """In proportion to `z / L`; 1 each until all losses are known."""
        losses = self.table("losses")
        if any(losses.get(task, 0.0) <= 0 for task in tasks):
            return [1.0] * len(tasks)
        # The gradient of log L is that of L divided by L.
        slopes = [share / losses[task] for task, share in zip(tasks, self._shares(tasks), strict=True)]
        return [len(tasks) * slope / sum(slopes) for slope in slopes]

    def observe(self, tasks: Sequence[str], losses: Sequence[float]) -> None:
        """Move the logits by the gradient of the softmax towards tasks whose losses fell less."""
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
        heights = [math.exp(self.table("logits").get(task, 0.0)) for task in tasks]
        return [height / sum(heights) for height in heights]
