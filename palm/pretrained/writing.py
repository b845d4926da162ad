"""An encoder's weights and sizes as a directory in Hugging Face's layout."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from torch import Tensor

from palm.backbone import Backbone
from palm.backbone.transformers import Transformers
from palm.core.files.fs import write_json
from palm.core.files.tensors import save_tensors
from palm.pretrained.families import config_of, family_of
from palm.pretrained.library import quiet_library, write_library_encoder
from palm.pretrained.names import from_ours


def write_hugging_face(weights: Mapping[str, Tensor], backbone: Backbone, folder: Path) -> None:
    """Write `model.safetensors` and `config.json` as `transformers` does for an encoder alone.

    Args:
        weights: by our names; what is missing is not made up.
        backbone: whose sizes they are.
        folder: is there.

    Raises:
        StorageError: `transformers` has no such encoder.
    """
    if isinstance(backbone, Transformers):
        with quiet_library():
            write_library_encoder(weights, backbone, folder)
        return
    family = family_of(backbone)
    save_tensors(folder / "model.safetensors", from_ours(weights, family.layout))
    write_json(folder / "config.json", config_of(backbone))
