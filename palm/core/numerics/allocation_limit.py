"""Limit the parameters of modules with untrusted settings to about the size of their weights."""

from __future__ import annotations

import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager

from torch import Tensor, nn
from torch.nn.modules.module import register_module_parameter_registration_hook

from palm.core.errors import StorageError

FACTOR = 2
SLACK = 1 << 20
MORE_TENSORS = 512
"""A module may have twice as many values as the weights and a million more (a pooler that the weights lack, a
table that a shared one replaces), in twice as many tensors and 512 more: shapes are compared afterwards."""


@contextmanager
def within_weights(weights: Mapping[str, Tensor], place: object) -> Iterator[None]:
    """Fail if a module that is built in this block becomes much larger than its weights.

    A wrong size in a description then costs no memory: torch's modules register a parameter before they fill
    it, and memory that is never written is never committed. The hook is process-wide during the block.

    Args:
        weights: the weights that will be loaded; tensors without storage will do.
        place: where the modules are described, for the message.

    Raises:
        StorageError: the modules become too large.
    """
    numbers = FACTOR * sum(value.numel() for value in weights.values()) + SLACK
    tensors = FACTOR * len(weights) + MORE_TENSORS
    thread = threading.get_ident()
    asked = [0, 0]

    def count(module: nn.Module, name: str, parameter: nn.Parameter) -> None:
        if threading.get_ident() != thread:  # the hook is also called for other threads
            return
        asked[0] += parameter.numel()
        asked[1] += 1
        if asked[0] > numbers or asked[1] > tensors:
            raise StorageError(
                f"{place}: the settings ask for far more parameters than the {len(weights)} saved tensors; "
                f"a size in them is wrong ({type(module).__name__}.{name} is {list(parameter.shape)})"
            )

    hook = register_module_parameter_registration_hook(count)
    try:
        yield
    finally:
        hook.remove()
