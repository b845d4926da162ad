"""A task's adapters and head as a small directory of their own, beside the whole model: many on one base."""

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
from palm.downloader import pretrained_directory
from palm.pretrained import load_pretrain
from palm.pretrained.loading import may_lack
from palm.pretrained.peft import read_adapters, write_adapters


@dataclass(frozen=True)
class Adapted:
    """The adapters of a task, and the encoder that they change.

    Args:
        adapters: of the task.
        shared: the encoder without them.
        base: a directory of the weights of that encoder, or a model's name; None where nothing has them.
    """

    adapters: LowRank
    shared: Backbone
    base: str | None

    def write(self, folder: Path) -> None:
        """Write the adapters in PEFT's format."""
        write_adapters(self.adapters, self.shared, folder, self.base)

    def beside(self, weights: Tensors) -> Tensors:
        """The weights that neither adapters nor base have: of the head, and what pretrained ones may lack."""
        own = {name for name in weights if may_lack(name.removeprefix("backbone."))}
        return {name: weights[name] for name in weights if name in own or name.startswith("paradigm.")}

    def facts(self) -> dict[str, Any]:
        """Describe the base, to find it again."""
        return {"base": {"path": self.base, "digests": tensor_digests(self.shared.state_dict())}}


def with_base(
    backbone: Backbone, weights: Tensors, saved: Mapping[str, Any], folder: Path, base: str | Path | None
) -> Backbone:
    """The encoder of a directory that `Adapted` wrote, with its adapters merged.

    Args:
        backbone: built as that was.
        weights: the directory's own, of the encoder.
        saved: what `facts` told.
        folder: the directory.
        base: replaces the place of the base there.

    Raises:
        StorageError: the base is not found, or is another.
    """
    # Only a place of the caller's own choice is downloaded from.
    place = base or saved["path"] or ""
    if base is None and not Path(place).is_dir():
        raise StorageError(
            f"{folder} has adapters and a head alone; their base {place!r} is no directory here: name it as "
            "base=, a directory or owner/name"
        )
    load_pretrain(backbone, pretrained_directory(place))
    load_into(backbone, {**backbone.state_dict(), **weights_under("backbone", weights)}, folder)
    digests = tensor_digests(backbone.state_dict())
    if other := [name for name in digests if digests[name] != saved["digests"].get(name)]:
        raise StorageError(
            f"{place} is another base than that of {folder}: {len(other)} of {len(digests)} tensors differ, "
            f"{other[0]} first; give the weights that the run started from, with base="
        )
    return read_adapters(backbone, folder).merged_into(backbone)
