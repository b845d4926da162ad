"""A task's adapters and head in a small separate directory, so many tasks can share one base model."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from palm.backbone import Backbone
from palm.backbone.low_rank import LowRank
from palm.core.errors import StorageError
from palm.core.files.tensors import load_into, tensor_digests, weights_under
from palm.core.tensor_specs import Tensors
from palm.pretrained import load_pretrain, pretrained_directory
from palm.pretrained.loading import may_lack
from palm.pretrained.peft import read_adapters, write_adapters


@dataclass(frozen=True)
class Adapted:
    """The adapters of a task, and the encoder that they change.

    Args:
        adapters: the adapters of the task.
        shared: the encoder without adapters.
        base: a directory with the weights of that encoder, or the name of a model; None if there is neither.
    """

    adapters: LowRank
    shared: Backbone
    base: str | None

    def write(self, folder: Path) -> None:
        """Write the adapters in PEFT's format."""
        write_adapters(self.adapters, self.shared, folder, self.base)

    def extras(self, weights: Tensors) -> Tensors:
        """Return the weights in neither adapters nor base: the head, and parts that base models may lack."""
        own = {name for name in weights if may_lack(name.removeprefix("backbone."))}
        return {name: weights[name] for name in weights if name in own or name.startswith("paradigm.")}

    def facts(self) -> dict[str, Any]:
        """Describe the base, so it can be found and verified."""
        return {"base": {"path": self.base, "digests": tensor_digests(self.shared.state_dict())}}


def with_base(
    backbone: Backbone, weights: Tensors, saved: Mapping[str, Any], folder: Path, base: str | Path | None
) -> Backbone:
    """Return the encoder of a directory that `Adapted` wrote, with its adapters merged.

    Args:
        backbone: an encoder built from the directory's description.
        weights: the weights in the directory.
        saved: the result of `facts` in the directory.
        folder: the directory.
        base: overrides the location of the base in `saved`.

    Raises:
        StorageError: the base is not found, or has other weights.
    """
    # A base is downloaded only if the caller names it.
    place = base or saved["path"] or ""
    if base is None and not Path(place).is_dir():
        raise StorageError(
            f"{folder} has only adapters and a head, and their base {place!r} is not a directory here; pass "
            "base=, a directory or owner/name"
        )
    load_pretrain(backbone, pretrained_directory(place))
    load_into(backbone, {**backbone.state_dict(), **weights_under("backbone", weights)}, folder)
    digests = tensor_digests(backbone.state_dict())
    if other := [name for name in digests if digests[name] != saved["digests"].get(name)]:
        raise StorageError(
            f"{place} is not the base of {folder}: {len(other)} of {len(digests)} tensors differ, starting "
            f"with {other[0]}; pass the weights that the run started from as base="
        )
    return read_adapters(backbone, folder).merged_into(backbone)
