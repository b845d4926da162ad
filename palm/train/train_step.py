"""One optimizer step: losses, gradients, update and averages."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass, replace
from itertools import zip_longest

import torch
from torch import Tensor, nn

from palm.core.cache import LESS_OF_A_GPU
from palm.core.errors import ConfigError, ResourceError, TrainingError, shortened
from palm.core.group import GradientExchange, all_reduce_sum, world_size
from palm.core.saved import Tensors
from palm.mixing.balance import Balance
from palm.optimizer import Optimizer, clip
from palm.optimizer.optimizers import MomentRule


def check_finite(tensors: Mapping[str, Tensor], place: str) -> None:
    """Raise an error unless all values are finite: one maximum per tensor, and one wait for a GPU.

    Args:
        tensors: name -> tensor of any shape; integer and empty ones are ignored.
        place: a description of the tensors and the time, for the message.

    Raises:
        TrainingError: some values are not finite; their tensors are named.
    """
    floats = {
        n: value.detach() for n, value in tensors.items() if value.is_floating_point() and value.numel()
    }
    if not floats:
        return
    # The infinity norm, because squares of large finite values would overflow.
    largest = torch._foreach_norm(list(floats.values()), ord=float("inf"))
    not_finite = ~torch.stack([value.to(largest[0].device, torch.float) for value in largest]).isfinite()
    if names := [name for name, bad in zip(floats, not_finite.tolist(), strict=True) if bad]:
        raise TrainingError(
            f"{place} has infinite or NaN values in {', '.join(shortened(names, 3))}; it was not saved. "
            "The last updates were too large: try a lower learning_rate, warmup_proportion above 0, or a "
            "smaller grad_clip"
        )


MOST_UNREAD = 1000
"""Steps after which the device's values are read even if nothing is logged."""


def decides_on_device(
    balance: Balance | None, device: torch.device, optimizer: torch.optim.Optimizer
) -> bool:
    """Decide whether the device skips bad updates by itself, so that the host need not wait in every step.

    This requires a GPU, an optimizer whose kernel can skip an update, and no balance that weights the next
    step by the losses of this one.
    """
    fused = isinstance(optimizer, MomentRule) or (
        isinstance(optimizer, torch.optim.AdamW) and all(group["fused"] for group in optimizer.param_groups)
    )
    follows_losses = balance is not None and type(balance).observe is not Balance.observe
    return device.type == "cuda" and fused and not follows_losses


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


def out_of_memory(place: str, batches: Sequence[Tensors], error: BaseException) -> ResourceError:
    """Describe the batches of a step that did not fit, and how to use less memory.

    Args:
        place: the tasks of the step and its position in the run.
        batches: the batches of the step.
        error: the error that torch raised.
    """
    shapes = (next(value for value in batch.values() if value.ndim > 1).shape for batch in batches)
    rows = ", ".join(f"{shape[0]} rows of up to {shape[1]} tokens" for shape in shapes)
    reason = str(error).split("\n")[0][:200]
    return ResourceError(
        f"{place}: the GPU has too little memory for a step on {rows} ({reason}). {LESS_OF_A_GPU}"
    )


class ExponentialMovingAverage:
    """Bias-corrected averages of parameters over the steps of training.

    After step t the average is `Σ decay^(t−i)·p_i / Σ decay^(t−i)` over the steps i = 1 … t, so
    early averages are not biased towards zero or the initial values. All parameters are averaged at
    every step, whether their task was drawn or not; one that never changed is its own average, exactly.

    Args:
        named_parameters: the parameters to average; they are changed only within `applied`.
        decay: weight of the past, at least 0 and below 1; with 0 the average is the parameter itself.

    Raises:
        ConfigError: the decay is out of range.

    Attributes:
        average: parameter name -> its average, of the same shape, dtype and device.
        num_updates: number of calls of `update`.
    """

    def __init__(self, named_parameters: Iterable[tuple[str, nn.Parameter]], decay: float) -> None:
        if not 0 <= decay < 1:
            raise ConfigError(f"ema_decay should be at least 0 and below 1, not {decay!r}")
        self.decay = decay
        self.num_updates = 0
        named = dict(named_parameters)
        self.average = {name: parameter.detach().clone() for name, parameter in named.items()}
        self._values = list(self.average.values())
        self._parameters = [parameter.detach() for parameter in named.values()]

    def update(self, skips: Tensor | None = None) -> None:
        """Add the parameters' present values; call it after every optimizer step.

        Args:
            skips: scalar on the device, 1 if that step was skipped; the averages then do not change.
        """
        self.num_updates += 1
        # With this weight the stored averages are always bias-corrected.
        weight = (1 - self.decay) / (1 - self.decay**self.num_updates)
        if skips is None:
            torch._foreach_lerp_(self._values, self._parameters, weight)
            return
        # lerp with one weight for all tensors takes it from the host, and this weight is on the device.
        changes = torch._foreach_sub(self._parameters, self._values)
        torch._foreach_mul_(changes, weight * (1 - skips))
        torch._foreach_add_(self._values, changes)

    @contextmanager
    def applied(self) -> Iterator[None]:
        """Replace the model's values by the averages within the context, and restore them exactly."""
        # Values are copied, not swapped, because optimizers refer to the parameters' memory.
        own = [parameter.clone() for parameter in self._parameters]
        torch._foreach_copy_(self._parameters, self._values)
        try:
            yield
        finally:
            torch._foreach_copy_(self._parameters, own)

    def restore(self, num_updates: int) -> None:
        """Take the parameters' present values as the averages after so many updates."""
        self.num_updates = num_updates
        torch._foreach_copy_(self._values, self._parameters)


class Replica:
    """A rank's copy of a model, whose gradients, after `backward`, are those of all ranks' batches together.

    Parameters that no rank used, such as heads that were not drawn, get no gradient, as in a single
    process. With one rank nothing is exchanged.

    Args:
        model: called with names of tasks and a batch of each, it returns the mean loss of each, [tasks].
    """

    def __init__(self, model: nn.Module) -> None:
        self.model = model
        # Collecting those of 500 heads takes as long as a step.
        self.parameters = list(model.parameters())

    @functools.cached_property
    def _exchange(self) -> GradientExchange:
        # Built at the first step, when it is final which parameters are frozen.
        return GradientExchange(self.model)

    def exchanging(self, tasks: Sequence[str], is_last: bool) -> AbstractContextManager[object]:
        """Return the context for a forward and backward pass; the last one of a step exchanges gradients."""
        return self._exchange.during(tuple(tasks)) if is_last and world_size() > 1 else nullcontext()


def loss_factors(
    counts: Sequence[Sequence[int]], others: Sequence[int] = ()
) -> tuple[list[list[float]], list[int]]:
    """Compute factors of mean losses so that their sum, averaged over ranks, is the mean over all rows.

    Args:
        counts: per task, the number of terms of each of this rank's mean losses in a step (see
            `Head.num_terms`).
        others: further counts of this rank.

    Returns:
        Per task, `count / total * ranks` for each loss, where `total` counts all ranks' terms (0 if there are
        none); and the sums of the other counts over all ranks.
    """
    # One exchange for all counts, on the CPU, so no device is waited for.
    totals = all_reduce_sum(torch.tensor([*map(sum, counts), *others])).tolist()
    # `totals` is longer than `counts`: the sums of `others` are at its end.
    factors = [
        [count * world_size() / max(total, 1) for count in own]  # gradients are averaged over ranks
        for own, total in zip(counts, totals, strict=False)
    ]
    return factors, totals[len(counts) :]


Update = Callable[[Mapping[str, Tensor]], Sequence[float] | None]
"""Makes the optimizer's step if the named scalars are finite; returns their values if they were read."""


@dataclass(frozen=True)
class TaskBatches:
    """The batches of one task in a step.

    Args:
        task: its name.
        parts: batches with targets, on the model's device, each with its factor in the task's loss (see
            `loss_factors`); several if gradients are accumulated.
        weight: factor of the task's loss in the gradient.
    """

    task: str
    parts: Sequence[tuple[Tensors, float]]
    weight: float = 1.0


def train_step(
    replica: Replica,
    drawn: Sequence[TaskBatches],
    optimizer: torch.optim.Optimizer,
    update: Update,
    *,
    clipping: Optimizer,
    balance: Balance | None,
) -> tuple[Tensor, Tensor]:
    """Update the encoder and the heads of the drawn tasks on the sum of their losses, weighted by `balance`.

    Args:
        replica: a model in training mode.
        drawn: the tasks of the step; two or more with `balance`.
        optimizer: the optimizer; it does not change parameters without a gradient, not even by decay.
        update: makes the optimizer's step.
        clipping: the settings `grad_clip` and `grad_clip_type`.
        balance: weights the tasks against each other; None: their losses are summed.

    Returns:
        The losses of all ranks' rows before the update, detached and not weighted, [tasks]; and the norm of
        the gradient before clipping.

    Raises:
        TrainingError: a loss or the gradient is not finite; nothing was updated.
    """
    optimizer.zero_grad(set_to_none=True)
    names = [each.task for each in drawn]
    factors = [1.0] * len(drawn) if balance is None else balance.of_losses(names)
    weighted = [replace(each, weight=each.weight * f) for each, f in zip(drawn, factors, strict=True)]
    losses = sum_of_losses(replica, weighted)
    norm = clip(replica.parameters, clipping.grad_clip, clipping.grad_clip_type)
    titles = ["loss"] if len(drawn) == 1 else [f"loss of task {name!r}" for name in names]
    values = update({**dict(zip(titles, losses, strict=True)), "gradient's norm": norm})
    if balance is not None and values is not None:  # always read for a balance that follows losses
        balance.observe(names, values[:-1])
    return losses, norm


def sum_of_losses(replica: Replica, drawn: Sequence[TaskBatches]) -> Tensor:
    """Compute the gradient of the weighted sum of the tasks' losses.

    The first batches of all tasks are encoded together, then the second ones of tasks that have more, and so
    on.

    Returns:
        The losses of all ranks' rows, detached and not weighted, [tasks].
    """
    rounds = list(zip_longest(*(each.parts for each in drawn)))
    totals: list[list[Tensor]] = [[] for _ in drawn]
    for number, parts in enumerate(rounds, start=1):
        here = [(own, *part) for own, part in enumerate(parts) if part is not None]
        with replica.exchanging([each.task for each in drawn], is_last=number == len(rounds)):
            losses = replica.model([drawn[own].task for own, _, _ in here], [batch for _, batch, _ in here])
            weighted = []
            for loss, (own, _, factor) in zip(losses.unbind(), here, strict=True):
                # The loss of a batch without any label is NaN. It stays in the graph, because other ranks may
                # have labels, and all of them exchange gradients.
                scaled = (loss if factor else loss.nan_to_num()) * factor
                weighted.append(scaled * drawn[own].weight)
                totals[own].append(scaled.detach())
            torch.stack(weighted).sum().backward()  # type: ignore[no-untyped-call]
    return all_reduce_sum(torch.stack([torch.stack(own).sum() for own in totals])) / world_size()
