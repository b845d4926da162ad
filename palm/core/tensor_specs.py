"""The contract between components: named tensors with shapes and dtypes, checked before a run starts."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

Tensors = dict[str, Tensor]
"""A batch, features or outputs: name in PALM's vocabulary -> tensor."""


NO_LABEL = -100
"""Label id of rows without a label and of tokens that do not begin a word; losses ignore it."""


@dataclass(frozen=True)
class TensorSpec:
    """Shape and dtype of one named tensor.

    Args:
        shape: for each dimension its fixed size, or its name if it is free (`"batch"`, `"seq"`).
        dtype: the dtype of the tensor.
    """

    shape: tuple[str | int, ...]
    dtype: torch.dtype

    def __str__(self) -> str:
        dimensions = ", ".join(str(size) for size in self.shape)
        return f"{str(self.dtype).removeprefix('torch.')}[{dimensions}]"

    def accepts(self, other: TensorSpec) -> bool:
        """Check whether a tensor declared as `other` may be used where this one is expected.

        All forms of a mask are accepted: bool in palm, float32 `[..., 1]` or `[...]` in PaddlePALM.
        """
        if {self.dtype, other.dtype} == MASK_DTYPES:
            mine, theirs = (
                spec.shape[:2] if spec.shape[2:] == (1,) else spec.shape for spec in (self, other)
            )
            return len(mine) == len(theirs)
        if self.dtype != other.dtype or len(self.shape) != len(other.shape):
            return False
        return all(
            isinstance(mine, str) or isinstance(theirs, str) or mine == theirs
            for mine, theirs in zip(self.shape, other.shape, strict=True)
        )


Specs = Mapping[str, TensorSpec]

MASK_DTYPES = {torch.bool, torch.float32}


def as_declared(tensors: Tensors, wanted: Specs) -> Tensors:
    """Return the tensors, with masks converted to the form that `wanted` declares."""
    found = dict(tensors)
    for name in wanted.keys() & tensors.keys():
        spec = wanted[name]
        tensor = tensors[name]
        if {spec.dtype, tensor.dtype} == MASK_DTYPES:
            if tensor.ndim > len(spec.shape):
                tensor = tensor.squeeze(-1)
            elif tensor.ndim < len(spec.shape):
                tensor = tensor.unsqueeze(-1)
            found[name] = tensor.to(spec.dtype)
    return found


def mismatches(consumer: str, wanted: Specs, producer: str, given: Specs) -> Iterator[str]:
    """Yield a sentence for every name in `wanted` that `given` lacks or declares differently."""
    for name, spec in wanted.items():
        if name not in given:
            have = ", ".join(sorted(given)) or "nothing"
            yield f"the {consumer} needs {name!r} as {spec}, but the {producer} provides only {have}"
        elif not spec.accepts(given[name]):
            yield f"the {consumer} needs {name!r} as {spec}, but the {producer} provides {given[name]}"
