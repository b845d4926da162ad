"""Building modules whose parameters are filled afterwards, without drawing random numbers for them first."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any

from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

_IS_UNFILLED = ContextVar("is_unfilled", default=False)


def is_unfilled() -> bool:
    """Whether parameters that are made now will be filled later, so that how they start does not matter."""
    return _IS_UNFILLED.get()


@contextmanager
def unfilled() -> Iterator[None]:
    """Within it, parameters get no start: whoever builds here must fill them all.

    Loading a saved model of BERT-base's size spent five of six CPU seconds on random numbers that the weights
    replaced. Buffers, and what modules compute besides, are made as ever, which "meta" tensors could not.
    """
    token = _IS_UNFILLED.set(True)
    try:
        with _NoStart():
            yield
    finally:
        _IS_UNFILLED.reset(token)


class _NoStart(TorchFunctionMode):
    """Leaves parameters alone that `torch.nn.init` is to start."""

    def __torch_function__(
        self,
        func: Callable[..., Any],
        types: Sequence[type],
        args: Sequence[Any] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> Any:
        given = kwargs or {}
        target = args[0] if args else given.get("tensor")
        if isinstance(target, nn.Parameter):
            if getattr(func, "__module__", None) == nn.init.__name__:
                return target
            # Of functions that this does not see, such as trunc_normal_, which draws again until all is in
            # its range: zeros are in any, and whatever the memory held would not be.
            if func in (Tensor.normal_, Tensor.uniform_):
                return target.zero_()
        return func(*args, **given)
