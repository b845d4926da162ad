"""One rank's model among several that train as one: losses and gradients are those of all ranks' rows."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass
from itertools import chain
from typing import Literal

import torch
from torch import Tensor, nn

from palm.core.numerics.layers import casts_norms
from palm.core.tensor_specs import Tensors
from palm.distributed.exchange import GradientExchange
from palm.distributed.group import all_reduce_sum, num_ranks

Parallel = Literal["ddp", "fsdp"]
"""Every rank has all parameters (ddp), or a part of each (fsdp)."""

Context = Callable[[], AbstractContextManager[None]]


@dataclass(frozen=True)
class Form:
    """The ways to use a model on several devices.

    Args:
        accumulating: within it, gradients add up on their rank.
        exchanging: within it, gradients of some tasks are exchanged.
        apart: within it, parts of the model can be called.
        gathers_in_bf16: whether layers have rounded parameters while they compute.
    """

    accumulating: Context = nullcontext
    exchanging: Callable[[tuple[str, ...]], AbstractContextManager[object]] = nullcontext
    apart: Context = nullcontext
    gathers_in_bf16: bool = False


class Replica:
    """A model whose gradients, after `backward`, are those of the batches of all ranks together.

    Parameters that no rank used keep no gradient: the heads that were not drawn rest, as in
    one process. With one rank nothing is wrapped and nothing is exchanged.

    Args:
        model: called with tasks' names and a batch of each, gives the mean loss of each, [tasks].
        parallel: `fsdp` replaces the parameters; build optimizers afterwards. Layers that stand in lists
            are gathered one at a time, what lies in none of them for the whole step.
    """

    def __init__(self, model: nn.Module, parallel: Parallel = "ddp") -> None:
        self._model = model
        self._parallel = parallel
        if parallel == "fsdp":
            self._form  # noqa: B018 - whoever builds an optimizer needs the parameters that it leaves

    @functools.cached_property
    def _form(self) -> Form:
        # With ddp it comes at the first step, when it is settled which parameters are frozen.
        if num_ranks() == 1:
            return Form()
        if self._parallel == "fsdp":
            return _sharded(self._model)
        return Form(exchanging=GradientExchange(self._model).during)

    @property
    def gathers_in_bf16(self) -> bool:
        """True if layers have parameters rounded to bfloat16, in whatever precision they are called."""
        return self._parallel == "fsdp" and self._form.gathers_in_bf16

    @functools.cached_property
    def parameters(self) -> list[nn.Parameter]:
        """The model's parameters; a walk through the heads of 500 tasks would take as long as a step."""
        return list(self._model.parameters())

    def loss_factors(
        self, counts: Sequence[Sequence[int]], others: Sequence[int] = ()
    ) -> tuple[list[list[float]], list[int]]:
        """Compute the factors with which the sum of mean losses, averaged over ranks, is that of all rows.

        Args:
            counts: per task, over how many terms each of this rank's losses of one step is the mean, see
                `Head.num_terms`.
            others: further counts of this rank.

        Returns:
            Per task `count / total * ranks` for each, where `total` is that of all ranks, 0 where no rank has
            a term; and the sums of the other counts over all ranks.
        """
        # One exchange for all counts, on the CPU, so that no device is waited for.
        totals = all_reduce_sum(torch.tensor([*map(sum, counts), *others])).tolist()
        # Longer than `counts`: the totals of the others come last.
        factors = [
            [count * num_ranks() / max(total, 1) for count in own]  # gradients are averaged over ranks
            for own, total in zip(counts, totals, strict=False)
        ]
        return factors, totals[len(counts) :]

    def losses(self, tasks: Sequence[str], batches: Sequence[Tensors]) -> Tensor:
        """Compute the mean losses of this rank's batches, [tasks], before their factors."""
        losses: Tensor = self._model(tasks, batches)
        return losses

    def mean(self, loss: Tensor) -> Tensor:
        """Average detached losses, multiplied by their factors, over the ranks."""
        return all_reduce_sum(loss) / num_ranks()

    def exchanging(self, tasks: Sequence[str], is_last: bool) -> AbstractContextManager[object]:
        """Within it, forward and backward of one part of a step of `tasks`; the last exchanges gradients."""
        return self._form.exchanging(tuple(tasks)) if is_last else self._form.accumulating()

    def apart(self) -> AbstractContextManager[None]:
        """Within it, the encoder and heads can be called on their own, by all ranks equally often."""
        return self._form.apart()


def gathers_in_bf16(model: nn.Module, layer: nn.Module) -> bool:
    """Return whether a layer casts all its parameters to bfloat16, so that they may travel in it."""
    return getattr(model, "precision", "fp32") == "bf16" and getattr(layer, "casts_its_parameters", False)


def _sharded(model: nn.Module) -> Form:
    from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard  # half a second that few need

    all_are_cast = casts_norms(next(model.parameters()))
    # Without its own word, the sum of gradients would follow the dtype of what is gathered.
    half = MixedPrecisionPolicy(torch.bfloat16, torch.float32)
    lists = [module for module in model.modules() if isinstance(module, nn.ModuleList)]
    rounded = []
    for layer in chain.from_iterable(lists):
        rounded.append(all_are_cast and gathers_in_bf16(model, layer))
        fully_shard(layer, mp_policy=half if rounded[-1] else MixedPrecisionPolicy())
    root = fully_shard(model)

    @contextmanager
    def accumulating() -> Iterator[None]:
        root.set_requires_gradient_sync(False)
        yield
        root.set_requires_gradient_sync(True)

    @contextmanager
    def apart() -> Iterator[None]:
        root.unshard()
        yield
        root.reshard()

    return Form(accumulating, apart=apart, gathers_in_bf16=any(rounded))
