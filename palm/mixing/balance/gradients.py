"""Methods from torchjd that weight the tasks' gradients, which a step computes separately."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, ClassVar

import numpy as np
import torch
from torch import Tensor

from palm.core.errors import ConfigError, about
from palm.mixing.balance.base import BALANCES, Balance


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
