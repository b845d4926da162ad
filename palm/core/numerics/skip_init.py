"""Build modules without initializing their parameters, which are filled afterwards."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any

from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

_SKIPS = ContextVar("skips_init", default=False)


def skips_init() -> bool:
    """True within `skip_init`."""
    return _SKIPS.get()


@contextmanager
def skip_init() -> Iterator[None]:
    """Within it, parameters are not initialized: all of them must be filled afterwards.

    Loading a saved model of BERT-base's size spent five of six CPU seconds on random numbers that the weights
    replaced. Buffers, and what modules compute besides, are made as ever, which "meta" tensors could not.
    """
    token = _SKIPS.set(True)
    try:
        with _SkipInit():
            yield
    finally:
        _SKIPS.reset(token)


class _SkipInit(TorchFunctionMode):
    """Leave parameters alone that `torch.nn.init` is to initialize."""

    def __torch_function__(
        self,
        func: Callable[..., Any],
        types: Sequence[type],
        args: Sequence[Any] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> Any:
        options = kwargs or {}
        target = args[0] if args else options.get("tensor")
        if isinstance(target, nn.Parameter):
            if getattr(func, "__module__", None) == nn.init.__name__:
                return target
            # Of functions that this does not see, such as trunc_normal_, which draws again until all is in
            # its range: zeros are in any, and whatever the memory held would not be.
            if func in (Tensor.normal_, Tensor.uniform_):
                return target.zero_()
        return func(*args, **options)
