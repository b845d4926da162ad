"""Files of named tensors, and modules that are filled from them."""

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
"""Bytes of a safetensors header, some thousand times what a model has."""

MAX_NAMED = 6
"""Parameters that a message names."""


def save_tensors(path: Path, tensors: Mapping[str, Tensor]) -> None:
    """Write named tensors as safetensors, from whatever device they are on.

    Raises:
        StorageError: the place cannot be written.
    """
    contiguous = {name: value.detach().cpu().contiguous() for name, value in tensors.items()}
    with wrap_write_errors(path):
        new_file(path).close()
        mode = path.stat().st_mode  # as the umask has it; safetensors' own files are for their owner alone
        save_file(contiguous, path, metadata={"format": "pt"})  # `transformers` reads no file without it
        path.chmod(mode)


def load_tensors(path: Path) -> dict[str, Tensor]:
    """Read a safetensors file.

    Raises:
        StorageError: missing, or not safetensors.
    """
    with wrap_read_errors(path):
        _check_header(path)
        return load_file(path)


def headers_in(path: Path) -> dict[str, tuple[str, list[int]]]:
    """Read from a safetensors file: name -> type, as `F32`, and shape of the tensor; needs no torch.

    Raises:
        ValueError, OSError: it is cut short, something else, or cannot be read.
    """
    _check_header(path)
    with safe_open(path, "np") as tensors:
        slices = {name: tensors.get_slice(name) for name in tensors.keys()}  # noqa: SIM118
        return {name: (one.get_dtype(), one.get_shape()) for name, one in slices.items()}


def _check_header(path: Path) -> None:
    """Look at the length that a safetensors file gives for its header before anybody reads that much.

    Raises:
        ValueError: it is cut short, or larger than any header.
        OSError: it cannot be read.
    """
    with path.open("rb") as file:
        length = int.from_bytes(file.read(8), "little")
    if length > MAX_HEADER or path.stat().st_size < 8:
        raise ValueError("it is not safetensors, or cut short: its header has no sensible length")


def load_into(module: nn.Module, weights: Mapping[str, Tensor], folder: Path) -> None:
    """Load a module's weights that were saved in `folder`.

    Raises:
        StorageError: some are missing, surplus or of another shape.
    """
    own = module.state_dict()
    found = [
        *(f"{name} is missing" for name in own if name not in weights),
        *(f"nothing takes {name}" for name in weights if name not in own),
        *(
            f"{name} is {list(weights[name].shape)}, the settings ask for {list(value.shape)}"
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
    """Return the weights whose name begins with `prefix` and a dot, by the rest of it."""
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
