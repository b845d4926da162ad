"""A rank's copy of a model that several ranks train together; losses and gradients cover all ranks' rows."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext

import torch
from torch import Tensor, nn

from palm.core.group import GradientExchange, all_reduce_sum, world_size
from palm.core.saved import Tensors


class Replica:
    """A model whose gradients, after `backward`, are those of all ranks' batches together.

    Parameters that no rank used, such as heads that were not drawn, get no gradient, as in a single
    process. With one rank nothing is wrapped or exchanged.

    Args:
        model: called with names of tasks and a batch of each, it returns the mean loss of each, [tasks].
    """

    def __init__(self, model: nn.Module) -> None:
        self._model = model

    @functools.cached_property
    def _exchange(self) -> GradientExchange:
        # Built at the first step, when it is final which parameters are frozen.
        return GradientExchange(self._model)

    @functools.cached_property
    def parameters(self) -> list[nn.Parameter]:
        """The model's parameters, cached, since collecting those of 500 heads takes as long as a step."""
        return list(self._model.parameters())

    def loss_factors(
        self, counts: Sequence[Sequence[int]], others: Sequence[int] = ()
    ) -> tuple[list[list[float]], list[int]]:
        """Compute factors of mean losses so that their sum, averaged over ranks, is the mean over all rows.

        Args:
            counts: per task, the number of terms of each of this rank's mean losses in a step (see
                `Head.num_terms`).
            others: further counts of this rank.

        Returns:
            Per task, `count / total * ranks` for each loss, where `total` counts all ranks' terms (0 if there
            are none); and the sums of the other counts over all ranks.
        """
        # One exchange for all counts, on the CPU, so no device is waited for.
        totals = all_reduce_sum(torch.tensor([*map(sum, counts), *others])).tolist()
        # `totals` is longer than `counts`: the sums of `others` are at its end.
        factors = [
            [count * world_size() / max(total, 1) for count in own]  # gradients are averaged over ranks
            for own, total in zip(counts, totals, strict=False)
        ]
        return factors, totals[len(counts) :]

    def losses(self, tasks: Sequence[str], batches: Sequence[Tensors]) -> Tensor:
        """Compute the mean losses of this rank's batches, [tasks], before their factors."""
        losses: Tensor = self._model(tasks, batches)
        return losses

    def mean(self, loss: Tensor) -> Tensor:
        """Average detached losses, multiplied by their factors, over the ranks."""
        return all_reduce_sum(loss) / world_size()

    def exchanging(self, tasks: Sequence[str], is_last: bool) -> AbstractContextManager[object]:
        """Return the context for a forward and backward pass; the last one of a step exchanges gradients."""
        return self._exchange.during(tuple(tasks)) if is_last and world_size() > 1 else nullcontext()
