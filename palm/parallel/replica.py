"""A rank's copy of a model that several ranks train together; losses and gradients cover all ranks' rows."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass
from itertools import chain

import torch
from torch import Tensor, nn

from palm.config.settings import Parallel
from palm.core.layers import casts_norms
from palm.core.saved import Tensors
from palm.parallel.group import GradientExchange, all_reduce_sum, world_size

Context = Callable[[], AbstractContextManager[None]]


@dataclass(frozen=True)
class Contexts:
    """The contexts in which a model on several devices is called.

    Args:
        accumulating: gradients accumulate on their rank.
        exchanging: gradients of the given tasks are exchanged.
        separate_calls: parts of the model can be called by themselves.
    """

    accumulating: Context = nullcontext
    exchanging: Callable[[tuple[str, ...]], AbstractContextManager[object]] = nullcontext
    separate_calls: Context = nullcontext


class Replica:
    """A model whose gradients, after `backward`, are those of all ranks' batches together.

    Parameters that no rank used, such as heads that were not drawn, get no gradient, as in a single
    process. With one rank nothing is wrapped or exchanged.

    Args:
        model: called with names of tasks and a batch of each, it returns the mean loss of each, [tasks].
        parallel: `fsdp` replaces the parameters, so optimizers must be built afterwards. Layers in a
            `ModuleList` are gathered one at a time, all other parameters for the whole step.
    """

    def __init__(self, model: nn.Module, parallel: Parallel = "ddp") -> None:
        self._model = model
        self._parallel = parallel
        if parallel == "fsdp":
            self._contexts  # noqa: B018 - sharding now, because optimizers need the final parameters

    @functools.cached_property
    def _contexts(self) -> Contexts:
        # With DDP it is built at the first step, when it is final which parameters are frozen.
        if world_size() == 1:
            return Contexts()
        if self._parallel == "fsdp":
            return _sharded(self._model)
        return Contexts(exchanging=GradientExchange(self._model).during)

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
        return self._contexts.exchanging(tuple(tasks)) if is_last else self._contexts.accumulating()

    def separate_calls(self) -> AbstractContextManager[None]:
        """Return a context for separate calls of encoder and heads, equally often on all ranks."""
        return self._contexts.separate_calls()


def gathers_in_bf16(model: nn.Module, layer: nn.Module) -> bool:
    """Check whether a layer casts all its parameters to bfloat16, so they can be gathered in it."""
    return getattr(model, "precision", "fp32") == "bf16" and getattr(layer, "casts_its_parameters", False)


def _sharded(model: nn.Module) -> Contexts:
    from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard  # takes half a second

    all_are_cast = casts_norms(next(model.parameters()))
    # The dtype of gradient sums is explicit; by default it would be that of gathered parameters.
    half = MixedPrecisionPolicy(torch.bfloat16, torch.float32)
    lists = [module for module in model.modules() if isinstance(module, nn.ModuleList)]
    for layer in chain.from_iterable(lists):
        is_rounded = all_are_cast and gathers_in_bf16(model, layer)
        fully_shard(layer, mp_policy=half if is_rounded else MixedPrecisionPolicy())
    root = fully_shard(model)

    @contextmanager
    def accumulating() -> Iterator[None]:
        root.set_requires_gradient_sync(False)
        yield
        root.set_requires_gradient_sync(True)

    @contextmanager
    def separate_calls() -> Iterator[None]:
        root.unshard()
        yield
        root.reshard()

    return Contexts(accumulating, separate_calls=separate_calls)
