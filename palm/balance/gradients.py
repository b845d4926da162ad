"""Methods that weigh the tasks' gradients, which a step then computes one by one and keeps side by side."""

from __future__ import annotations

import math
from abc import abstractmethod
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from palm.balance.base import BALANCES, Balance
from palm.core.checks import positive_problems, raise_any
from palm.core.errors import ConfigError


class OfGramian(Balance):
    """A method of torchjd's: a weighting of the gradients' dot products, without a state of its own.

    Raises:
        ConfigError: torchjd, or what it solves with, is not installed.
    """

    needs_gradients = True

    def __init__(self) -> None:
        super().__init__()
        try:
            self.weighting = self.built()
        except ImportError as error:
            raise ConfigError(
                [f"balance: {type(self).__name__} needs torchjd: pip install 'palm-torch[balance]' ({error})"]
            ) from None

    @abstractmethod
    def built(self) -> Any:
        """The weighting: float64[tasks, tasks] to float64[tasks]."""

    def of_gradients(
        self,
        tasks: Sequence[str],  # noqa: ARG002
        gramian: Tensor,
        draws: np.random.Generator,
    ) -> list[float]:
        """Those of torchjd, whose random draws follow `draws`."""
        # Some weightings divide by a gradient's norm; a task without any gradient has no say.
        alive = [k for k in range(len(gramian)) if float(gramian[k, k]) > 0]
        factors = [1.0] * len(gramian)
        if len(alive) > 1:
            with torch.random.fork_rng(devices=[]):
                torch.manual_seed(int(draws.integers(2**63)))
                found = self.weighting(gramian[alive][:, alive]).tolist()
            for k, factor in zip(alive, found, strict=True):
                factors[k] = factor
        return factors


@BALANCES.register("pcgrad")
class PCGrad(OfGramian):
    """Gradients that point against each other lose what they have in common; then they are summed up.

    Source: Yu et al., 2020, arXiv:2001.06782, through torchjd.
    """

    def built(self) -> Any:
        """In a random order of the tasks, as in the paper."""
        from torchjd.aggregation import PCGradWeighting

        return PCGradWeighting()


@BALANCES.register("cagrad")
class CAGrad(OfGramian):
    """The direction near the mean gradient in which the task that gains least gains most.

    Args:
        cagrad_radius: of cagrad, how far from the mean it may be, in norms of it; 0 for the mean, below 1.

    Source: Liu et al., 2021, arXiv:2110.14048, through torchjd.
    """

    def __init__(self, cagrad_radius: float = 0.5) -> None:
        if not 0 <= cagrad_radius < 1:
            raise ConfigError([f"cagrad_radius should be at least 0 and below 1, not {cagrad_radius!r}"])
        self.radius = cagrad_radius
        super().__init__()

    def built(self) -> Any:
        """Solved with cvxpy."""
        from torchjd.aggregation import CAGradWeighting

        return CAGradWeighting(c=self.radius)


@BALANCES.register("mgda")
class MGDA(OfGramian):
    """The shortest vector among all weighted means of the gradients.

    Source: Sener and Koltun, 2018, arXiv:1810.04650, algorithm 2, through torchjd.
    """

    def built(self) -> Any:
        """The Frank-Wolfe solver."""
        from torchjd.aggregation import MGDAWeighting

        return MGDAWeighting()


@BALANCES.register("upgrad")
class UPGrad(OfGramian):
    """The mean of the gradients, each first projected to where no other task's loss grows.

    Source: Quinton and Rey, 2024, arXiv:2406.16232, through torchjd.
    """

    def built(self) -> Any:
        """All tasks count alike."""
        from torchjd.aggregation import UPGradWeighting

        return UPGradWeighting()


@BALANCES.register("nash_mtl")
class NashMTL(Balance):
    """The Nash bargaining solution: factors a > 0 with `G a = 1 / a`, so that every task gains alike.

    The combined gradient's norm is the root of the number of tasks, however large the gradients are.

    Source: Navon et al., 2022, arXiv:2202.01017, equation 3, solved in every step by Newton's method for the
    convex `a G a / 2 - Σ log a`, whose minimum it is, in place of a sequence of convex programs.
    """

    needs_gradients = True

    def of_gradients(
        self,
        tasks: Sequence[str],
        gramian: Tensor,
        draws: np.random.Generator,  # noqa: ARG002
    ) -> list[float]:
        """Accurate to some 1e-6; of exact opposites, for which there is no solution, nearly 0 is left."""
        scale = float(gramian.diagonal().mean())
        if not scale > 0:
            return [1.0] * len(tasks)
        products = gramian / scale + 1e-9 * torch.eye(len(gramian), dtype=gramian.dtype)
        factors = products.diagonal().clamp(min=1e-9).rsqrt()
        for _ in range(100):
            slope = products @ factors - 1 / factors
            step = torch.linalg.solve(products + torch.diag(factors**-2), slope)
            decrement = float(slope @ step) ** 0.5
            # A step of this length never leaves the region where the logarithms exist.
            factors = factors - step / (1 + decrement)
            if decrement < 1e-10:
                break
        found: list[float] = (factors / scale**0.5).tolist()
        return found


@BALANCES.register("gradnorm")
class GradNorm(Balance):
    """Factors are learned that bring all gradients' norms together; tasks that lag may have larger ones.

    The factors sum up to the number of tasks of the step. Heads keep their own gradients.

    Args:
        gradnorm_alpha: of gradnorm, how much more a task gets whose loss has fallen less; 0 for equal norms.
        gradnorm_rate: of gradnorm, the learning rate of the factors' logarithms.

    Source: Chen et al., 2018, arXiv:1711.02257, with the gradient of the whole shared encoder, and steps on
    the factors' logarithms, which keeps them above 0.
    """

    needs_gradients = True

    def __init__(self, gradnorm_alpha: float = 1.5, gradnorm_rate: float = 0.025) -> None:
        super().__init__()
        problems = list(positive_problems(gradnorm_rate=gradnorm_rate))
        if not 0 <= gradnorm_alpha < math.inf:
            problems.append(f"gradnorm_alpha should be 0 or more, not {gradnorm_alpha!r}")
        raise_any(problems)
        self.alpha, self.rate = gradnorm_alpha, gradnorm_rate

    def of_gradients(
        self,
        tasks: Sequence[str],
        gramian: Tensor,
        draws: np.random.Generator,  # noqa: ARG002
    ) -> list[float]:
        """The factors after a step towards equal norms."""
        logs, norms = self.table("logs"), gramian.diagonal().sqrt().tolist()
        sizes = [math.exp(logs.get(task, 0.0)) * norm for task, norm in zip(tasks, norms, strict=True)]
        first, last = self.table("first"), self.table("last")
        left = [last.get(task, 1.0) / first.get(task, 1.0) for task in tasks]  # of each loss
        mean, mean_left = sum(sizes) / len(sizes), sum(left) / len(left)
        for task, size, own in zip(tasks, sizes, left, strict=True):
            goal = mean * (own / mean_left) ** self.alpha if mean_left > 0 else mean
            # By the sign alone, so that the rate does not depend on how large gradients are.
            logs[task] = logs.get(task, 0.0) - self.rate * math.copysign(size > 0, size - goal)
        heights = [math.exp(logs[task]) for task in tasks]
        factors = [len(tasks) * height / sum(heights) for height in heights]
        logs.update({task: math.log(factor) for task, factor in zip(tasks, factors, strict=True)})
        return factors

    def observe(self, tasks: Sequence[str], losses: Sequence[float]) -> None:
        """Keep a task's first loss, and its last."""
        for task, loss in zip(tasks, losses, strict=True):
            self.table("first").setdefault(task, loss if loss > 0 else 1.0)
            self.table("last")[task] = loss
