"""Construction of modules without initializing parameters that will be loaded anyway."""

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
    """Skip the initialization of parameters; all of them must be loaded afterwards.

    Loading a saved model of BERT-base's size spent five of six CPU seconds on random numbers that the weights
    then replaced. Unlike with "meta" tensors, buffers and other computed values are complete.
    """
    token = _SKIPS.set(True)
    try:
        with _SkipInit():
            yield
    finally:
        _SKIPS.reset(token)


class _SkipInit(TorchFunctionMode):
    """Intercept calls of `torch.nn.init` for parameters."""

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
            # trunc_normal_ is not intercepted and resamples until all values are in range, which zeros always
            # are and uninitialized memory may not be.
            if func in (Tensor.normal_, Tensor.uniform_):
                return target.zero_()
        return func(*args, **options)
