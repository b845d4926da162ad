"""Files of named tensors, and modules that are loaded from them."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from pathlib import Path
from typing import TypeVar

import torch
from safetensors import safe_open
from safetensors.torch import load_file, save_file
from torch import Tensor, nn

from palm.core.differences import shortened
from palm.core.errors import StorageError
from palm.core.files.door import new_file
from palm.core.files.untrusted import wrap_read_errors
from palm.core.files.write_errors import wrap_write_errors

T = TypeVar("T")

MAX_HEADER = 1 << 24
"""Maximum size of a safetensors header in bytes, some thousand times a usual model's."""

MAX_NAMED = 6
"""Maximum number of parameters that a message lists."""


def save_tensors(path: Path, tensors: Mapping[str, Tensor]) -> None:
    """Write named tensors, on any device, as safetensors.

    Raises:
        StorageError: the file cannot be written.
    """
    contiguous = {name: value.detach().cpu().contiguous() for name, value in tensors.items()}
    with wrap_write_errors(path):
        new_file(path).close()
        mode = path.stat().st_mode  # follows the umask; safetensors makes files private to their owner
        save_file(contiguous, path, metadata={"format": "pt"})  # `transformers` needs this entry
        path.chmod(mode)


def load_tensors(path: Path) -> dict[str, Tensor]:
    """Read a safetensors file.

    Raises:
        StorageError: it is missing or not safetensors.
    """
    with wrap_read_errors(path):
        _check_header(path)
        return load_file(path)


def headers_in(path: Path) -> dict[str, tuple[str, list[int]]]:
    """Read the name, type (such as `F32`) and shape of the tensors in a safetensors file, without torch.

    Raises:
        ValueError, OSError: it is truncated, not safetensors, or cannot be read.
    """
    _check_header(path)
    with safe_open(path, "np") as tensors:
        slices = {name: tensors.get_slice(name) for name in tensors.keys()}  # noqa: SIM118
        return {name: (one.get_dtype(), one.get_shape()) for name, one in slices.items()}


def _check_header(path: Path) -> None:
    """Check the length of a safetensors file's header before it is read.

    Raises:
        ValueError: the file is truncated, or the length exceeds `MAX_HEADER`.
        OSError: it cannot be read.
    """
    with path.open("rb") as file:
        length = int.from_bytes(file.read(8), "little")
    if length > MAX_HEADER or path.stat().st_size < 8:
        raise ValueError("it is not safetensors, or truncated: the length of its header is not plausible")


def load_into(module: nn.Module, weights: Mapping[str, Tensor], folder: Path) -> None:
    """Load weights that were saved in `folder` into a module.

    Raises:
        StorageError: some are missing, unexpected or of another shape.
    """
    own = module.state_dict()
    found = [
        *(f"{name} is missing" for name in own if name not in weights),
        *(f"{name} is unexpected" for name in weights if name not in own),
        *(
            f"{name} has shape {list(weights[name].shape)}, expected {list(value.shape)}"
            for name, value in own.items()
            if name in weights and weights[name].shape != value.shape
        ),
    ]
    if found:
        raise StorageError(
            f"{folder}: the weights do not fit the settings of {type(module).__name__}: "
            f"{'; '.join(shortened(found, MAX_NAMED))}; give the settings that it was trained with"
        )
    module.load_state_dict(dict(weights))


def weights_under(prefix: str, weights: Mapping[str, T]) -> dict[str, T]:
    """Return the weights whose names begin with `prefix` and a dot, by the rest of their names."""
    start = f"{prefix}."
    return {name.removeprefix(start): value for name, value in weights.items() if name.startswith(start)}


def tensor_digests(tensors: Mapping[str, Tensor]) -> dict[str, str]:
    """Return a digest of each tensor's type, shape and bytes."""
    digests = {}
    for name, value in tensors.items():
        plain = value.detach().cpu().contiguous()
        digest = hashlib.blake2b(f"{plain.dtype} {tuple(plain.shape)}".encode(), digest_size=16)
        # As bytes, since NumPy has no bfloat16.
        digest.update(plain.reshape(-1).view(torch.uint8).numpy().data)
        digests[name] = digest.hexdigest()
    return digests
