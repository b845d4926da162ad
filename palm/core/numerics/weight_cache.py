"""Weights as products take them, in their dtype and layout, kept from one prediction to the next."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from contextvars import ContextVar, Token
from typing import Any, NamedTuple, Protocol, TypeVar

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.optim.optimizer import register_optimizer_step_post_hook

Product = Callable[[Tensor], Tensor]


class Held(Protocol):
    """What knows by itself whether it was made of what is there now."""

    def is_current(self) -> bool: ...


H = TypeVar("H", bound=Held)


class _Entry(NamedTuple):
    """What was made of some parameters; they are held, so that no other has their addresses."""

    parameters: tuple[Tensor, ...]
    state: tuple[Any, ...]
    made: Any


class KeptWeights:
    """What is made of parameters, where they are first used within a `with` block, for later blocks.

    Casting MiniLM's weights to bfloat16 was half of the time of predicting one short row. It is made anew
    where a parameter has another memory or was written to, and after every step of any of torch's optimizers,
    which do not all count as writing. Who writes to `parameter.data` by hand calls `forget`.
    """

    def __init__(self) -> None:
        _watch_optimizers()
        self._entries: dict[tuple[int, ...], _Entry] = {}
        self._held: dict[tuple[int, torch.dtype], tuple[object, Any]] = {}
        self._tokens: list[Token[KeptWeights | None]] = []

    def __enter__(self) -> None:
        self._tokens.append(_CURRENT.set(self))

    def __exit__(self, *_: object) -> None:
        _CURRENT.reset(self._tokens.pop())

    def __reduce__(self) -> tuple[type[KeptWeights], tuple[()]]:
        return KeptWeights, ()  # copies and pickles keep nothing

    def forget(self) -> None:
        """Make everything anew."""
        self._entries.clear()
        self._held.clear()

    def held(self, owner: object, dtype: torch.dtype, make: Callable[[], H]) -> H:
        """What `make` makes of an object, in a dtype; made anew where it is not current any more."""
        key = id(owner), dtype
        _, made = self._held.get(key, (None, None))
        if made is None or not made.is_current():
            made = make()
            self._held[key] = owner, made  # the owner is held, so that no other has its address
        return made  # type: ignore[no-any-return]

    def get(self, parameters: Sequence[Tensor], dtype: torch.dtype, make: Callable[[], Any]) -> Any:
        """What `make` makes of parameters in a dtype."""
        key = tuple(map(id, parameters))
        state = (dtype, _steps_taken[0], *(n for p in parameters for n in (p._version, p.data_ptr())))
        entry = self._entries.get(key)
        if entry is None or entry.state != state:
            entry = self._entries[key] = _Entry(tuple(parameters), state, make())
        return entry.made


def keeper(parameters: Sequence[Tensor], dtype: torch.dtype) -> KeptWeights | None:
    """Who keeps what is made of parameters in a dtype; None where they have it, or gradients are wanted."""
    # The compiler cannot look into a ContextVar: every look would cut a compiled layer into pieces.
    kept = None if torch.compiler.is_compiling() else _CURRENT.get()
    if kept is None or parameters[0].dtype == dtype or torch.is_grad_enabled():
        return None
    return None if any(parameter.is_inference() for parameter in parameters) else kept


def current_keeper() -> KeptWeights | None:
    """Who keeps what is made of parameters; None where nobody does, or gradients are wanted."""
    return None if torch.is_grad_enabled() else _CURRENT.get()


def num_steps_taken() -> int:
    """Steps of any of torch's optimizers so far; they do not all count as writing to a parameter."""
    return _steps_taken[0]


def product_of(layers: Sequence[nn.Linear], dtype: torch.dtype) -> Product:
    """Linear layers with one input as one product, `[..., width]` to `[..., sum of outputs]`."""
    weight = torch.cat([layer.weight.detach().to(dtype) for layer in layers])
    bias = torch.cat([layer.bias.detach().to(dtype) for layer in layers])
    if weight.device.type != "cpu" or dtype != torch.bfloat16 or not _can_pack():
        return lambda tokens: F.linear(tokens, weight, bias)
    # oneDNN takes a bfloat16 matrix in blocks, and makes them at every call: without that, a product of 14
    # rows takes 0.7 of the time, with the same bits. In float32 the bits would be others.
    packed = torch.ops.mkldnn._reorder_linear_weight(weight, 16)
    return lambda tokens: torch.ops.mkldnn._linear_pointwise(tokens, packed, bias, "none", [], "")


@functools.cache
def _can_pack() -> bool:
    # Private to torch, whose compiler uses them; a version may lack them.
    operators = ("_reorder_linear_weight", "_linear_pointwise", "_is_mkldnn_bf16_supported")
    there = all(hasattr(torch.ops.mkldnn, name) for name in operators)
    return there and bool(torch.ops.mkldnn._is_mkldnn_bf16_supported())


_CURRENT: ContextVar[KeptWeights | None] = ContextVar("kept_weights", default=None)
_steps_taken = [0]


@functools.cache
def _watch_optimizers() -> None:
    def count(*_: object) -> None:
        _steps_taken[0] += 1

    register_optimizer_step_post_hook(count)
