"""Limit what a module may allocate when its settings come from elsewhere to about its weights' size."""

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
"""Parameters may have twice the numbers of the weights and a million more (a pooler that the weights lack,
a table that a shared one replaces), in twice the tensors and some more: shapes are compared afterwards."""


@contextmanager
def within_weights(weights: Mapping[str, Tensor], place: object) -> Iterator[None]:
    """Stop the construction of modules in this block that grow far beyond the weights they are meant for.

    A wrong size in a description then costs nothing: torch's modules register a parameter before they fill
    it, and memory that was never written to was never taken. The hook is process-wide during the block.

    Args:
        weights: what the modules will be filled with; tensors without storage will do.
        place: what describes them, for the message.

    Raises:
        StorageError: the modules ask for too much.
    """
    numbers = FACTOR * sum(value.numel() for value in weights.values()) + SLACK
    tensors = FACTOR * len(weights) + MORE_TENSORS
    thread = threading.get_ident()
    asked = [0, 0]

    def count(module: nn.Module, name: str, parameter: nn.Parameter) -> None:
        if threading.get_ident() != thread:  # the hook is one for the whole process
            return
        asked[0] += parameter.numel()
        asked[1] += 1
        if asked[0] > numbers or asked[1] > tensors:
            raise StorageError(
                f"{place}: the settings ask for far more than the {len(weights)} tensors that are there; "
                f"a size in them is wrong ({type(module).__name__}.{name} is {list(parameter.shape)})"
            )

    hook = register_module_parameter_registration_hook(count)
    try:
        yield
    finally:
        hook.remove()
