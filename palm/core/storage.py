"""The files of models and checkpoints: written, entered in a manifest, verified against it, read."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import Tensor, nn

from palm.core.checksum import checksum
from palm.core.disk import flush, flush_folder, heal, writing
from palm.core.errors import StorageError

MANIFEST = "manifest.json"


def seal(folder: Path) -> None:
    """Enter every file in `manifest.json` with its size and SHA-256, and flush them to the disk."""
    files = sorted(file for file in folder.rglob("*") if file.is_file())
    entries = {
        file.relative_to(folder).as_posix(): {"size": file.stat().st_size, "sha256": checksum(file)}
        for file in files
    }
    write_json(folder / MANIFEST, entries)
    for file in (*files, folder / MANIFEST):
        flush(file)
    for place in {file.parent for file in files} | {folder}:
        flush_folder(place)


def verify(folder: Path) -> None:
    """Check every file of a sealed directory against its manifest.

    Raises:
        StorageError: not a sealed directory, or a file is missing, cut short or changed.
    """
    heal(folder)
    manifest = folder / MANIFEST
    if not is_sealed(folder):
        raise StorageError(f"{folder} is not a directory that palm saved: it has no {MANIFEST}")
    for name, entry in read_json(manifest).items():
        file = folder / name
        if not file.is_file():
            raise StorageError(f"{folder} is damaged: {name} is missing; use another, or copy it anew")
        if file.stat().st_size != entry["size"] or checksum(file) != entry["sha256"]:
            raise StorageError(
                f"{folder} is damaged: {name} differs from its checksum; use another, or copy it anew"
            )


def is_sealed(folder: Path) -> bool:
    """Whether palm wrote this directory as a whole."""
    return (folder / MANIFEST).is_file()


def numbered(folder: Path, start: str) -> dict[int, Path]:
    """The directories `<start><number>` in a folder, by number."""
    return {
        int(match[1]): path
        for path in (folder.iterdir() if folder.is_dir() else ())
        if (match := re.fullmatch(re.escape(start) + r"(\d+)", path.name))
    }


def write_text(path: Path, text: str) -> None:
    """Write a UTF-8 file that appears whole.

    Raises:
        StorageError: the place cannot be written; what stood there before is whole.
    """
    part = path.with_name(f".{path.name}.{os.getpid()}.part")
    with writing(path):
        try:
            part.write_text(text, encoding="utf-8")
            flush(part)
            part.replace(path)
        finally:
            part.unlink(missing_ok=True)


def write_json(path: Path, value: Any) -> None:
    """Write a value as indented UTF-8 JSON."""
    write_text(path, json.dumps(value, ensure_ascii=False, indent=2) + "\n")


def read_json(path: Path) -> Any:
    """Read a JSON file.

    Raises:
        StorageError: missing, or not JSON.
    """
    try:
        return json.loads(path.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError, json.JSONDecodeError) as error:
        raise StorageError(f"cannot read {path}: {error}") from error


def save_tensors(path: Path, tensors: Mapping[str, Tensor]) -> None:
    """Write named tensors as safetensors, from whatever device they are on.

    Raises:
        StorageError: the place cannot be written.
    """
    contiguous = {name: value.detach().cpu().contiguous() for name, value in tensors.items()}
    with writing(path):
        save_file(contiguous, path, metadata={"format": "pt"})  # `transformers` reads no file without it


def load_tensors(path: Path) -> dict[str, Tensor]:
    """Read a safetensors file.

    Raises:
        StorageError: missing, or not safetensors.
    """
    try:
        return load_file(path)
    except (OSError, SafetensorError) as error:
        raise StorageError(f"cannot read {path}: {error}") from error


def load_into(module: nn.Module, weights: Mapping[str, Tensor], folder: Path) -> None:
    """Load a module's weights that were saved in `folder`.

    Raises:
        StorageError: some are missing, surplus or of another shape.
    """
    try:
        module.load_state_dict(dict(weights))
    except RuntimeError as error:
        kind = type(module).__name__
        raise StorageError(f"{folder}: the weights do not fit the settings of {kind}: {error}") from error


def under(prefix: str, weights: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """The weights whose name begins with `prefix` and a dot, by the rest of it."""
    start = f"{prefix}."
    return {name.removeprefix(start): value for name, value in weights.items() if name.startswith(start)}
