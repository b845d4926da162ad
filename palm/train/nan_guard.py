"""A guard against updates from losses and gradients that are not finite; on a GPU it reports a step later."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from palm.core.tensor_specs import Tensors
from palm.mixing.balance import Balance
from palm.optimizer.moments import MomentRule
from palm.parallel.group import world_size
from palm.train.device_transfer import fetched
from palm.train.recipe import Recipe


@dataclass(frozen=True)
class Attempt:
    """A step, with the counters of the run before it.

    Args:
        tasks: names of the drawn tasks.
        step: global steps.
        rows: rows of all batches.
        tokens: tokens of all batches.
        task_steps: task -> its steps.
    """

    tasks: Sequence[str]
    step: int
    rows: int
    tokens: int
    task_steps: Mapping[str, int]


class NotFinite(FloatingPointError):  # noqa: N818 - internal; the training loop turns it into an error
    """Raised when a loss or gradient is not finite; neither that step nor any later one changed anything."""

    def __init__(self, message: str, attempt: Attempt) -> None:
        super().__init__(message)
        self.attempt = attempt


def can_read_late(recipe: Recipe, optimizer: torch.optim.Optimizer) -> bool:
    """Decide whether the values of a step may be read after the next step has begun.

    This requires a GPU (where reading waits for all queued work), an optimizer whose kernel can skip an
    update by itself, and no balance that weights the next step by the losses of this one.
    """
    fused = isinstance(optimizer, MomentRule) or (
        isinstance(optimizer, torch.optim.AdamW) and all(group["fused"] for group in optimizer.param_groups)
    )
    whole = world_size() == 1 or recipe.parallel == "ddp"
    follows_losses = recipe.balance is not None and type(recipe.balance).observe is not Balance.observe
    return recipe.device.type == "cuda" and fused and whole and not follows_losses


class NanGuard:
    """Runs the steps of an optimizer, except those whose loss or gradient is not finite.

    Args:
        optimizer: if values are read late, torch's fused AdamW or a `MomentRule`.
        late: read the values of a step after the next one is queued, so a GPU never waits for the host. Until
            then the device decides: a step that is not finite, and all later ones, change nothing.

    Attributes:
        refuses: scalar tensor, 1 if the device refuses the last step; None if values are not read late.
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
            values: name in messages -> scalar.

        Returns:
            The values; None if they are read late.

        Raises:
            NotFinite: a value of this step is not finite; with late reading, of the step before.
        """
        stacked = torch.stack(list(values.values())).detach()
        if not self._late:
            numbers: list[float] = stacked.tolist()  # waits for a GPU
            _check(attempt, list(values), numbers)
            self._optimizer.step()
            return numbers
        refuses = (~stacked.isfinite().all()).float()
        # It stays 1: otherwise a step after a bad one would run before the host has noticed.
        self.refuses = refuses if self.refuses is None else torch.maximum(self.refuses, refuses)
        # The mechanism of torch's GradScaler: with 1, the kernel changes no weights, moments or counters.
        self._optimizer.found_inf = self.refuses  # type: ignore[attr-defined]
        self._optimizer.step()
        del self._optimizer.found_inf  # type: ignore[attr-defined]
        self._unread.append((attempt, list(values), fetched({"values": stacked})))
        self.read(keep=1)
        return None

    def read(self, keep: int = 0) -> None:
        """Read the values of all steps except the last `keep` ones.

        Raises:
            NotFinite: a value is not finite. The guard is reset, as if that step had not been tried.
        """
        try:
            while len(self._unread) > keep:
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
