"""Conversion of tensor names between palm and other frameworks."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass

from torch import Tensor

from palm.pretrained.layouts import (
    LAYOUTS,
    LEFT_OUT,
    PREFIXES,
    WRAPPERS,
    Layout,
    LayoutName,
    is_linear_weight,
)

_LAYER = re.compile(r"(?<=layer[._])\d+(?=[._])|(?<=layers\.)\d+(?=\.)")
_LEFT_OUT = re.compile("|".join(LEFT_OUT))
_OURS = {
    name: {theirs: ours for ours, theirs in layout.names.items()} | dict(layout.also or {})
    for name, layout in LAYOUTS.items()
}


@dataclass(frozen=True)
class Renamed:
    """A file's tensors under our names.

    Args:
        layout: the layout of the file's names; 'palm' if none of them is known.
        weights: our name -> tensor, linear weights as [out, in].
        left_out: the file's names of heads and constants.
        unused: all other names in the file.
        original: the file's tensors under its own names, without the prefixes of wrappers.
    """

    layout: LayoutName
    weights: dict[str, Tensor]
    left_out: list[str]
    unused: list[str]
    original: Mapping[str, Tensor]


def to_ours(tensors: Mapping[str, Tensor]) -> Renamed:
    """Rename tensors of any known layout, including our own, to our names.

    The layout with the most matching names is chosen, the first one on a tie. An alternative name is used
    only if the layout's own name is missing.
    """
    tensors = _unwrapped(tensors)
    layout = max(LAYOUTS, key=lambda name: sum(_own_name(theirs, name) is not None for theirs in tensors))
    own = LAYOUTS[layout].names.values()
    renamed = Renamed(layout, {}, [], [], tensors)
    # False sorts first, so a layout's own names take precedence over alternative ones.
    for theirs in sorted(tensors, key=lambda name: _with_placeholder(_without_prefix(name)) not in own):
        ours = _own_name(theirs, layout)
        if ours is not None and ours not in renamed.weights:
            renamed.weights[ours] = _reoriented(tensors[theirs], ours, LAYOUTS[layout])
        else:
            (renamed.left_out if _LEFT_OUT.search(theirs) else renamed.unused).append(theirs)
    return renamed


def from_ours(weights: Mapping[str, Tensor], layout: LayoutName) -> dict[str, Tensor]:
    """Convert an encoder's `state_dict()` to the names and the orientation of another framework."""
    names = LAYOUTS[layout].names
    return {
        _lookup(names, ours) or ours: _reoriented(value, ours, LAYOUTS[layout])
        for ours, value in weights.items()
    }


def _unwrapped(tensors: Mapping[str, Tensor]) -> Mapping[str, Tensor]:
    """Remove the prefixes that all names have because the model was an attribute of something else."""
    while prefix := next(
        (one for one in WRAPPERS if tensors and all(n.startswith(one) for n in tensors)), None
    ):
        tensors = {name.removeprefix(prefix): value for name, value in tensors.items()}
    return tensors


def _own_name(name: str, layout: LayoutName) -> str | None:
    return _lookup(_OURS[layout], _without_prefix(name))


def _without_prefix(name: str) -> str:
    while prefix := next((one for one in PREFIXES if name.startswith(one)), None):
        name = name.removeprefix(prefix)
    # Checkpoints converted from TensorFlow by early tools keep its names for the weights of norms.
    return name.replace("LayerNorm.gamma", "LayerNorm.weight").replace("LayerNorm.beta", "LayerNorm.bias")


def _lookup(table: Mapping[str, str], name: str) -> str | None:
    layer = _LAYER.search(name)
    found = table.get(_with_placeholder(name))
    return found and found.format(layer.group() if layer else "")


def _with_placeholder(name: str) -> str:
    """Replace the number of the layer by `{}`."""
    return _LAYER.sub("{}", name, count=1)


def _reoriented(value: Tensor, ours: str, layout: Layout) -> Tensor:
    return value.t() if layout.transposed and is_linear_weight(ours) else value
