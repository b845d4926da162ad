"""A guard against updates from losses and gradients that are not finite."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

import torch
from torch import Tensor

from palm.config.settings import Parallel
from palm.core.errors import TrainingError
from palm.mixing.balance import Balance
from palm.optimizer.moments import MomentRule
from palm.parallel.group import world_size

MOST_UNREAD = 1000
"""Steps after which the device's values are read even if nothing is logged."""


def decides_on_device(
    parallel: Parallel, balance: Balance | None, device: torch.device, optimizer: torch.optim.Optimizer
) -> bool:
    """Decide whether the device skips bad updates by itself, so that the host need not wait in every step.

    This requires a GPU, an optimizer whose kernel can skip an update, and no balance that weights the next
    step by the losses of this one.
    """
    fused = isinstance(optimizer, MomentRule) or (
        isinstance(optimizer, torch.optim.AdamW) and all(group["fused"] for group in optimizer.param_groups)
    )
    whole = world_size() == 1 or parallel == "ddp"
    follows_losses = balance is not None and type(balance).observe is not Balance.observe
    return device.type == "cuda" and fused and whole and not follows_losses


class NanGuard:
    """Makes the steps of an optimizer, except those whose loss or gradient is not finite.

    Args:
        optimizer: if the device decides, torch's fused AdamW or a `MomentRule`.
        on_device: the device skips the first bad step and all later ones, until `read` reports it. Otherwise
            every step is checked before its update, which waits for a GPU.

    Attributes:
        skips: scalar tensor, 1 from the first skipped step on; None if the host decides.
    """

    def __init__(self, optimizer: torch.optim.Optimizer, on_device: bool) -> None:
        self._optimizer = optimizer
        self._on_device = on_device
        self.skips: Tensor | None = None
        self._unread: list[tuple[str, Sequence[str], Tensor]] = []

    def update(self, place: str, values: Mapping[str, Tensor]) -> list[float] | None:
        """Make a step if all values are finite.

        Args:
            place: the tasks and numbers of the step, for the message.
            values: name in the message -> scalar.

        Returns:
            The values; None if they have not been read.

        Raises:
            TrainingError: a value is not finite; nothing was updated by this step.
        """
        stacked = torch.stack(list(values.values())).detach()
        if not self._on_device:
            numbers: list[float] = stacked.tolist()  # waits for a GPU
            _check(place, list(values), numbers)
            self._optimizer.step()
            return numbers
        if len(self._unread) >= MOST_UNREAD:
            self.read()
        bad = (~stacked.isfinite().all()).float()
        # It stays 1, or a step after a bad one would be made before the host has noticed.
        self.skips = bad if self.skips is None else torch.maximum(self.skips, bad)
        # The mechanism of torch's GradScaler: with 1, the kernel changes no weights or moments.
        self._optimizer.found_inf = self.skips  # type: ignore[attr-defined]
        self._optimizer.step()
        del self._optimizer.found_inf  # type: ignore[attr-defined]
        self._unread.append((place, list(values), stacked))
        return None

    def read(self) -> None:
        """Read the values of all steps since the last call; this waits for a GPU.

        Raises:
            TrainingError: a value is not finite; neither that step nor any later one changed anything.
        """
        unread = self._unread
        self._unread = []
        if not unread:
            return
        numbers = torch.cat([values for _, _, values in unread]).tolist()
        try:
            for place, names, values in unread:
                _check(place, names, numbers[: len(values)])
                del numbers[: len(values)]
        except TrainingError:
            self.skips = None
            raise


def _check(place: str, names: Sequence[str], numbers: Sequence[float]) -> None:
    for name, value in zip(names, numbers, strict=True):
        if not math.isfinite(value):
            raise TrainingError(
                f"{place}: the {name} is {value}; nothing was updated. Try a lower learning_rate, "
                "warmup_proportion above 0, or a smaller grad_clip, and check the rows of this batch"
            )
