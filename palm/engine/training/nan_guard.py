"""No update where the loss or the gradient is not a number; where reading waits, it is told a step later."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from palm.balance import Balance
from palm.core.tensor_specs import Tensors
from palm.distributed.group import num_ranks
from palm.engine.training.device_transfer import fetched
from palm.engine.training.recipe import Recipe
from palm.optimizer.moments import MomentRule


@dataclass(frozen=True)
class Attempt:
    """A step, and where the run was before it.

    Args:
        tasks: the names of those that were drawn.
        step: global steps.
        rows: rows of all batches.
        tokens: their tokens.
        task_steps: steps of each task.
    """

    tasks: Sequence[str]
    step: int
    rows: int
    tokens: int
    task_steps: Mapping[str, int]


class NotFinite(FloatingPointError):  # noqa: N818 - it is an answer, and what to tell of it others know
    """A step had a loss or a gradient that is not a number, and moved nothing; nor did any step since."""

    def __init__(self, message: str, attempt: Attempt) -> None:
        super().__init__(message)
        self.attempt = attempt


def can_read_late(recipe: Recipe, optimizer: torch.optim.Optimizer) -> bool:
    """Decide whether the values of a step may be read after the next one has begun.

    On a GPU, where reading waits until all work is done; with an optimizer whose kernel can decide by itself
    whether it updates; and without a balance that weighs the next step by the losses of this one.
    """
    fused = isinstance(optimizer, MomentRule) or (
        isinstance(optimizer, torch.optim.AdamW) and all(group["fused"] for group in optimizer.param_groups)
    )
    whole = num_ranks() == 1 or recipe.parallel == "ddp"
    follows_losses = recipe.balance is not None and type(recipe.balance).observe is not Balance.observe
    return recipe.device.type == "cuda" and fused and whole and not follows_losses


class NanGuard:
    """Lets an optimizer make its steps, but none with a loss or a gradient that is not a number.

    Args:
        optimizer: where values are read late, a fused AdamW of torch's, or a `MomentRule`.
        late: read the values of a step when the next one is on its way, so that a GPU never waits for the
            host. Until then, the device decides: a step that is not finite, and all after it, move nothing.

    Attributes:
        refuses: 1 where the device refuses the last step, a scalar; None where values are not read late.
    """

    def __init__(self, optimizer: torch.optim.Optimizer, late: bool) -> None:
        self._optimizer = optimizer
        self._late = late
        self.refuses: Tensor | None = None
        self._unread: list[tuple[Attempt, Sequence[str], Callable[[], Tensors]]] = []

    def update(self, attempt: Attempt, values: Mapping[str, Tensor]) -> list[float] | None:
        """Make a step if all values are finite.

        Args:
            attempt: the step.
            values: scalars by what they are called in a message.

        Returns:
            The values; None where they are read late.

        Raises:
            NotFinite: a value of this step is not finite; or where they are read late, of the one before.
        """
        stacked = torch.stack(list(values.values())).detach()
        if not self._late:
            numbers: list[float] = stacked.tolist()  # a GPU is waited for
            _check(attempt, list(values), numbers)
            self._optimizer.step()
            return numbers
        refuses = (~stacked.isfinite().all()).float()
        # It stays 1: a step after a bad one would otherwise be made before anybody knows of that.
        self.refuses = refuses if self.refuses is None else torch.maximum(self.refuses, refuses)
        # As torch's GradScaler does it: the kernel leaves weights, moments and counters alone where it is 1.
        self._optimizer.found_inf = self.refuses  # type: ignore[attr-defined]
        self._optimizer.step()
        del self._optimizer.found_inf  # type: ignore[attr-defined]
        self._unread.append((attempt, list(values), fetched({"values": stacked})))
        self.read(but=1)
        return None

    def read(self, but: int = 0) -> None:
        """Read the values of all steps but so many of the last ones.

        Raises:
            NotFinite: some are not finite. The guard begins anew, as if that step had not been tried.
        """
        try:
            while len(self._unread) > but:
                attempt, names, numbers = self._unread[0]
                _check(attempt, names, numbers()["values"].tolist())
                self._unread.pop(0)
        except NotFinite:
            if isinstance(self._optimizer, MomentRule):
                self._optimizer.forget(len(self._unread))
            self._unread.clear()
            self.refuses = None
            raise


def _check(attempt: Attempt, names: Sequence[str], numbers: Sequence[float]) -> None:
    for name, value in zip(names, numbers, strict=True):
        if not math.isfinite(value):
            raise NotFinite(f"the {name} is {value}", attempt)
