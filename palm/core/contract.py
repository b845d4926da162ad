"""The contract between components: named tensors with shapes and dtypes, checked before a run starts."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

Tensors = dict[str, Tensor]
"""A batch, features or outputs: name in PALM's vocabulary -> tensor."""


NO_LABEL = -100
"""The label id of what has none, a row, or a token that is no word's first piece; no loss counts it."""


@dataclass(frozen=True)
class TensorSpec:
    """Shape and dtype of one named tensor.

    Args:
        shape: a fixed number per dimension, or the name of a free one (`"batch"`, `"seq"`).
        dtype: the dtype the tensor has.
    """

    shape: tuple[str | int, ...]
    dtype: torch.dtype

    def __str__(self) -> str:
        dimensions = ", ".join(str(size) for size in self.shape)
        return f"{str(self.dtype).removeprefix('torch.')}[{dimensions}]"

    def accepts(self, other: TensorSpec) -> bool:
        """Whether a tensor declared as `other` may stand where this one is wanted."""
        if self.dtype != other.dtype or len(self.shape) != len(other.shape):
            return False
        return all(
            isinstance(mine, str) or isinstance(theirs, str) or mine == theirs
            for mine, theirs in zip(self.shape, other.shape, strict=True)
        )


Specs = Mapping[str, TensorSpec]


def mismatches(consumer: str, wanted: Specs, producer: str, given: Specs) -> Iterator[str]:
    """One sentence for every name of `wanted` that `given` lacks or declares otherwise."""
    for name, spec in wanted.items():
        if name not in given:
            have = ", ".join(sorted(given)) or "nothing"
            yield f"the {consumer} needs {name!r} as {spec}, the {producer} gives only {have}"
        elif not spec.accepts(given[name]):
            yield f"the {consumer} needs {name!r} as {spec}, the {producer} gives {given[name]}"
