"""A file's tensors under our names, and ours under those of another program."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass

from torch import Tensor

from palm.pretrained.layouts import LAYOUTS, LEFT_OUT, PREFIXES, Layout, LayoutName, is_linear_weight

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
        layout: whose names the file has; 'palm' where none of them is known.
        weights: our name -> tensor, linear weights as [out, in].
        left_out: the file's names of heads and constants.
        unused: the file's other names.
        original: the file's tensors under its own names.
    """

    layout: LayoutName
    weights: dict[str, Tensor]
    left_out: list[str]
    unused: list[str]
    original: Mapping[str, Tensor]


def to_ours(tensors: Mapping[str, Tensor]) -> Renamed:
    """Tensors of any known layout, ours included, under our names.

    The layout is the one that knows most of the names, the first of them on a tie. A name that
    the layout only accepts counts where its own is not there.
    """
    layout = max(LAYOUTS, key=lambda name: sum(_own_name(theirs, name) is not None for theirs in tensors))
    own = LAYOUTS[layout].names.values()
    renamed = Renamed(layout, {}, [], [], tensors)
    # False sorts first: a layout's own names win over those that it merely accepts.
    for theirs in sorted(tensors, key=lambda name: _general(_bare(name)) not in own):
        ours = _own_name(theirs, layout)
        if ours is not None and ours not in renamed.weights:
            renamed.weights[ours] = _oriented(tensors[theirs], ours, LAYOUTS[layout])
        else:
            (renamed.left_out if _LEFT_OUT.search(theirs) else renamed.unused).append(theirs)
    return renamed


def from_ours(weights: Mapping[str, Tensor], layout: LayoutName) -> dict[str, Tensor]:
    """An encoder's `state_dict()` under the names, and in the orientation, of another program."""
    names = LAYOUTS[layout].names
    return {
        _looked_up(names, ours) or ours: _oriented(value, ours, LAYOUTS[layout])
        for ours, value in weights.items()
    }


def _own_name(name: str, layout: LayoutName) -> str | None:
    return _looked_up(_OURS[layout], _bare(name))


def _bare(name: str) -> str:
    for prefix in PREFIXES:
        name = name.removeprefix(prefix)
    # Checkpoints that early programs converted from TensorFlow keep its words for a norm's weights.
    return name.replace("LayerNorm.gamma", "LayerNorm.weight").replace("LayerNorm.beta", "LayerNorm.bias")


def _looked_up(table: Mapping[str, str], name: str) -> str | None:
    layer = _LAYER.search(name)
    found = table.get(_general(name))
    return found and found.format(layer.group() if layer else "")


def _general(name: str) -> str:
    """The name with `{}` for the number of its layer."""
    return _LAYER.sub("{}", name, count=1)


def _oriented(value: Tensor, ours: str, layout: Layout) -> Tensor:
    return value.t() if layout.transposed and is_linear_weight(ours) else value
