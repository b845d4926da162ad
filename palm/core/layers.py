"""Layers and their initialization, shared by backbones and heads."""

from __future__ import annotations

import functools
import hashlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from functools import partial
from typing import Annotated, Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.optim.optimizer import register_optimizer_step_post_hook
from torch.overrides import TorchFunctionMode

from palm.core.component import unknown
from palm.core.device import compute_dtype
from palm.core.errors import about


def generator(seed: int, purpose: str, *position: int | str) -> np.random.Generator:
    """Return the generator for one decision; takes about 17 µs.

    Args:
        seed: the run's `random_seed`.
        purpose: the kind of decision: `"mix"`, `"shuffle"`, `"mask"`.
        position: numbers and task names; for masking (task, epoch, row).
    """
    key = repr((seed, purpose, *position)).encode()
    # Python's `hash` of a string differs between processes.
    digest = hashlib.blake2b(key, digest_size=16).digest()
    return np.random.Generator(np.random.Philox(key=int.from_bytes(digest, "little")))


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


Product = Callable[[Tensor], Tensor]


class WeightCache:
    """Products made from parameters in an `active` block, kept for later blocks.

    With it, one short request is 1.92 times as fast in bfloat16 (Zen 4), because weights are not cast again.
    Products are dropped when a parameter was moved or written to, and after a step of any torch optimizer,
    because the fused ones do not change a tensor's version. After writing to `parameter.data`, call `clear`.
    """

    def __init__(self) -> None:
        _watch_optimizers()
        self._products: dict[tuple[object, ...], Product] = {}
        self._parameters: dict[int, tuple[Tensor, int, int]] = {}
        self._steps = 0

    @contextmanager
    def active(self) -> Iterator[None]:
        """Make predictions in this block use the cache."""
        if self._steps != _steps_taken[0] or any(
            p._version != version or p.data_ptr() != start for p, version, start in self._parameters.values()
        ):
            self.clear()
        self._steps = _steps_taken[0]
        token = _ACTIVE.set(self)
        try:
            yield
        finally:
            _ACTIVE.reset(token)

    def __reduce__(self) -> tuple[type[WeightCache], tuple[()]]:
        return WeightCache, ()  # copies and pickles start empty

    def clear(self) -> None:
        """Drop all products."""
        self._products.clear()
        self._parameters.clear()

    def product(self, layers: Sequence[nn.Linear], dtype: torch.dtype) -> Product:
        """Return linear layers as one product in a dtype, built at its first use."""
        parameters = [parameter for layer in layers for parameter in layer.parameters(recurse=False)]
        key = (dtype, *map(id, parameters))
        if key not in self._products:
            # This also keeps the parameters alive, so that no other tensor can have the same ids.
            self._parameters.update({id(p): (p, p._version, p.data_ptr()) for p in parameters})
            self._products[key] = _product(layers, dtype)
        return self._products[key]


def cached_product(layers: Sequence[nn.Linear], dtype: torch.dtype) -> Product | None:
    """Return linear layers with one input as one product in a dtype, from the active cache.

    The product returns the concatenated outputs of the layers. None if no cache is active, or the weights
    already have the dtype.
    """
    cache = _ACTIVE.get()
    # When an exporter traces the layers, cached products would become constants in the graph.
    if cache is None or torch.is_grad_enabled() or torch.compiler.is_compiling():
        return None
    weight = layers[0].weight
    # A tensor created in inference mode has no version counter.
    return None if weight.dtype == dtype or weight.is_inference() else cache.product(layers, dtype)


def _product(layers: Sequence[nn.Linear], dtype: torch.dtype) -> Product:
    weight = torch.cat([layer.weight.detach().to(dtype) for layer in layers])
    biases = [layer.bias.detach().to(dtype) for layer in layers if layer.bias is not None]
    bias = torch.cat(biases) if biases else None
    if weight.device.type != "cpu" or dtype != torch.bfloat16 or not _can_pack():
        return lambda tokens: F.linear(tokens, weight, bias)
    # oneDNN reorders a bfloat16 matrix into blocks at every call; reordered once, a product of 14 rows takes
    # 0.7 of the time, with the same bits. In float32 the bits would differ.
    packed = torch.ops.mkldnn._reorder_linear_weight(weight, 16)
    return lambda tokens: torch.ops.mkldnn._linear_pointwise(tokens, packed, bias, "none", [], "")


@functools.cache
def _can_pack() -> bool:
    # Private operators of torch's compiler, which a version may lack.
    operators = ("_reorder_linear_weight", "_linear_pointwise", "_is_mkldnn_bf16_supported")
    there = all(hasattr(torch.ops.mkldnn, name) for name in operators)
    return there and bool(torch.ops.mkldnn._is_mkldnn_bf16_supported())


_ACTIVE: ContextVar[WeightCache | None] = ContextVar("weight_cache", default=None)
_steps_taken = [0]


@functools.cache
def _watch_optimizers() -> None:
    def count(*_: object) -> None:
        _steps_taken[0] += 1

    register_optimizer_step_post_hook(count)


Activation = Callable[[Tensor], Tensor]

ACTIVATIONS: dict[str, Activation] = {
    "gelu": F.gelu,
    "gelu_new": partial(F.gelu, approximate="tanh"),
    "gelu_pytorch_tanh": partial(F.gelu, approximate="tanh"),
    "relu": F.relu,
    "tanh": torch.tanh,
}
"""`hidden_act` in a BERT configuration -> function. `gelu` is the exact form with erf."""


def activation_problems(hidden_act: str) -> list[str]:
    """Return a line if no activation has this name."""
    if hidden_act in ACTIVATIONS:
        return []
    return [about("hidden_act", f": {unknown('activation', hidden_act, ACTIVATIONS)}")]


ActivationName = Annotated[str, activation_problems]
"""A setting's annotation: the name of an activation."""


def linear(tokens: Tensor, layer: nn.Linear) -> Tensor:
    """Apply a linear layer with a bias to [..., width], in the dtype of `tokens`."""
    if type(layer).forward is not nn.Linear.forward:  # such as an adapted one
        adapted: Tensor = layer(tokens)
        return adapted
    if product := cached_product((layer,), tokens.dtype):
        return product(tokens)
    return F.linear(tokens, layer.weight.to(tokens.dtype), layer.bias.to(tokens.dtype))


class SharedLinear(nn.Linear):
    """A linear layer with the parameters of another one, for subclasses that compute it differently."""

    def __init__(self, shared: nn.Linear) -> None:
        nn.Module.__init__(self)
        self.in_features = shared.in_features
        self.out_features = shared.out_features
        self._parameters = shared._parameters


class CachedLinear(SharedLinear):
    """A linear layer that uses the weight cache in prediction; replaces `nn.Linear` in other libraries."""

    def forward(self, tokens: Tensor) -> Tensor:
        """Apply the layer, in the dtype of autocast if that is enabled."""
        dtype = compute_dtype(tokens)
        product = cached_product((self,), dtype)
        return super().forward(tokens) if product is None else product(tokens.to(dtype))


def layer_norm(tokens: Tensor, norm: nn.LayerNorm) -> Tensor:
    """Apply a layer norm in the dtype of `tokens`; mean and variance are always float32."""
    dtype = tokens.dtype if tokens.is_cuda else norm.weight.dtype
    weight = norm.weight.to(dtype)
    return F.layer_norm(tokens, norm.normalized_shape, weight, norm.bias.to(dtype), norm.eps)


def init_weights(module: nn.Module, initializer_range: float) -> None:
    """Initialize weights from a normal truncated at two sigma, biases with 0, layer norms with 1 and 0.

    Within `skip_init`, nothing is initialized.

    Args:
        module: its linear layers, embeddings and layer norms are initialized, at any depth.
        initializer_range: sigma of the distribution.

    Source: Devlin et al., 2018, BERT's published program.
    """
    for part in () if skips_init() else module.modules():
        if isinstance(part, nn.Linear | nn.Embedding):
            cut = 2 * initializer_range
            nn.init.trunc_normal_(part.weight, std=initializer_range, a=-cut, b=cut)
        elif isinstance(part, nn.LayerNorm):
            nn.init.ones_(part.weight)
        if isinstance(part, nn.Linear | nn.LayerNorm) and part.bias is not None:
            nn.init.zeros_(part.bias)
