"""Names, shapes and dtypes of a directory's weights, without the numbers where a file can be read so."""

from __future__ import annotations

from pathlib import Path

import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor

from palm.core.errors import StorageError
from palm.core.storage import read_json
from palm.pretrained.files import read_weights

_DTYPES = {"F64": torch.float64, "F32": torch.float32, "F16": torch.float16, "BF16": torch.bfloat16}
"""safetensors' names of dtypes; all others are no weights, and count as int64."""


def read_headers(path: str | Path) -> dict[str, Tensor]:
    """The tensors of `read_weights` on the device "meta", where they have no numbers.

    Of safetensors, whole or in shards, only the headers are read.

    Args:
        path: as for `read_weights`.

    Raises:
        StorageError: as `read_weights`.
    """
    folder = Path(path)
    index = folder / "model.safetensors.index.json"
    if (folder / "model.safetensors").is_file():
        return _header(folder / "model.safetensors")
    if index.is_file():
        shards = sorted(set(read_json(index)["weight_map"].values()))
        return {name: value for shard in shards for name, value in _header(folder / shard).items()}
    return {name: value.to("meta") for name, value in read_weights(path).items()}


def _header(file: Path) -> dict[str, Tensor]:
    try:
        with safe_open(file, "pt") as tensors:
            slices = {name: tensors.get_slice(name) for name in tensors.keys()}  # noqa: SIM118
            return {
                name: torch.empty(
                    one.get_shape(), dtype=_DTYPES.get(one.get_dtype(), torch.int64), device="meta"
                )
                for name, one in slices.items()
            }
    except (OSError, SafetensorError) as error:
        raise StorageError(f"cannot read {file}: {error}") from error
