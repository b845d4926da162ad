"""All weights of a pass in the dtype that it computes with, by one copy, and their gradients back by one."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable


@contextmanager
def cast_together(parameters: Iterable[Tensor], dtype: torch.dtype) -> Iterator[None]:
    """Within it, `cast` gives these parameters in a dtype, with gradients, and casts none of them any more.

    A GPU then starts a few kernels where it would start two for each of them. Gradients reach the parameters
    at the end of the backward pass, all at once; until then, they exist in `dtype`. The bits are the same.

    Args:
        parameters: those without a gradient, and those of the dtype, are passed over.
        dtype: what they are wanted in.
    """
    wanted = [each for each in parameters if each.requires_grad and each.dtype != dtype]
    if not wanted or not torch.is_grad_enabled():
        yield
        return
    made: tuple[Tensor, ...] = _Cast.apply(dtype, *wanted)  # type: ignore[no-untyped-call]
    token = _MADE.set({id(parameter): value for parameter, value in zip(wanted, made, strict=True)})
    try:
        yield
    finally:
        _MADE.reset(token)


def cast(parameter: Tensor, dtype: torch.dtype) -> Tensor:
    """A parameter in a dtype: what `cast_together` made of it, or a copy of its own."""
    # The compiler, which casts within its kernels, cannot look into a ContextVar.
    made = None if torch.compiler.is_compiling() else _MADE.get()
    found = None if made is None else made.get(id(parameter))
    return parameter.to(dtype) if found is None or found.dtype != dtype else found


class _Cast(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, dtype: torch.dtype, *parameters: Tensor) -> tuple[Tensor, ...]:
        ctx.set_materialize_grads(False)  # who was not used has no gradient, rather than zeros
        ctx.dtypes = [parameter.dtype for parameter in parameters]
        return _copied(parameters, [dtype] * len(parameters))

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *gradients: Tensor | None) -> tuple[Tensor | None, ...]:
        known = {place: gradient for place, gradient in enumerate(gradients) if gradient is not None}
        made = _copied(list(known.values()), [ctx.dtypes[place] for place in known])
        by_place = dict(zip(known, made, strict=True))
        return None, *(by_place.get(place) for place in range(len(gradients)))


def _copied(tensors: Iterable[Tensor], dtypes: Iterable[torch.dtype]) -> tuple[Tensor, ...]:
    given = list(tensors)
    made = [torch.empty_like(each, dtype=dtype) for each, dtype in zip(given, dtypes, strict=True)]
    if made:
        torch._foreach_copy_(made, given)
    return tuple(made)


_MADE: ContextVar[Mapping[int, Tensor] | None] = ContextVar("cast_weights", default=None)
