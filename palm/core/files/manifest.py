"""The files of models and checkpoints: written, entered in a manifest, verified against it, read."""

from __future__ import annotations

import hashlib
import json
import os
import re
from collections.abc import Collection, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save_file
from torch import Tensor, nn

from palm.core.errors import StorageError
from palm.core.files.checksum import checksum
from palm.core.files.fs import flush, flush_folder, heal, writing
from palm.core.files.untrusted import inside, parse_json, read_bytes, reading

MANIFEST = "manifest.json"

MAX_HEADER = 1 << 24
"""Bytes of a safetensors header, some thousand times what a model has."""


def seal(folder: Path) -> None:
    """Enter every file in `manifest.json` with its size and SHA-256, and flush them to the disk."""
    files = sorted(file for file in folder.rglob("*") if file.is_file())
    entries = {
        file.relative_to(folder).as_posix(): {"size": file.stat().st_size, "sha256": checksum(file)}
        for file in files
    }
    write_text(folder / MANIFEST, _manifest_text(entries))
    for file in (*files, folder / MANIFEST):
        flush(file)
    for place in {file.parent for file in files} | {folder}:
        flush_folder(place)


def _manifest_text(entries: Mapping[str, Any]) -> str:
    """The manifest of these files, with a checksum of itself; there is one text for the same entries."""
    digest = hashlib.sha256(json.dumps(entries).encode()).hexdigest()
    return json.dumps({"sha256": digest, "files": entries}, indent=2) + "\n"


def manifest_of(folder: Path) -> dict[str, dict[str, Any]]:
    """The files of a sealed directory with their sizes and checksums, after a check of the manifest itself.

    Raises:
        StorageError: not a sealed directory, or its manifest is damaged.
    """
    file = folder / MANIFEST
    if not is_sealed(folder):
        raise StorageError(f"{folder} is not a directory that palm saved: it has no {MANIFEST}")
    try:
        with reading(file):
            text = read_bytes(file)
            entries = parse_json(text)["files"]
            whole = isinstance(entries, dict) and _manifest_text(entries).encode() == text
    except StorageError as error:
        raise StorageError(f"{folder} is damaged: {error}; use another, or copy it anew") from error
    if not whole:
        raise StorageError(
            f"{folder} is damaged: {MANIFEST} differs from its own checksum; use another, or copy it anew"
        )
    return entries  # type: ignore[no-any-return]


def verify(folder: Path, needed: Collection[str] = ()) -> Collection[str]:
    """Check every file of a sealed directory against its manifest, small ones first.

    Args:
        folder: the directory.
        needed: files that belong there in any case.

    Returns:
        The names of its files.

    Raises:
        StorageError: not a sealed directory, or a file is missing, cut short or changed.
    """
    heal(folder)
    entries = manifest_of(folder)
    for name in needed:
        if name not in entries:
            raise StorageError(f"{folder} is damaged: {MANIFEST} does not list {name}; use another")
    with reading(folder / MANIFEST):
        for name in sorted(entries, key=lambda name: entries[name]["size"]):
            _check(folder, name, entries[name])
    return entries.keys()


def verified_object(folder: Path, name: str) -> dict[str, Any]:
    """Read a JSON object of a sealed directory after a check of this file alone.

    Raises:
        StorageError: as `verify`.
    """
    entries = manifest_of(folder)
    if name not in entries:
        raise StorageError(f"{folder} is damaged: {MANIFEST} does not list {name}; use another")
    with reading(folder / MANIFEST):
        _check(folder, name, entries[name])
    return read_object(folder / name)


def _check(folder: Path, name: str, entry: Mapping[str, Any]) -> None:
    file = inside(folder, name)
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
            with suppress(OSError):
                part.unlink()


def write_json(path: Path, value: Any) -> None:
    """Write a value as indented UTF-8 JSON."""
    write_text(path, json.dumps(value, ensure_ascii=False, indent=2) + "\n")


def read_json(path: Path) -> Any:
    """Read a JSON file.

    Raises:
        StorageError: missing, not JSON, or larger than any that palm or others write.
    """
    with reading(path):
        return parse_json(read_bytes(path))


def read_object(path: Path) -> dict[str, Any]:
    """Read a JSON file that holds an object.

    Raises:
        StorageError: as `read_json`, or it holds something else.
    """
    content = read_json(path)
    if not isinstance(content, dict):
        raise StorageError(f"cannot read {path}: it should hold a JSON object, not {type(content).__name__}")
    return content


def save_tensors(path: Path, tensors: Mapping[str, Tensor]) -> None:
    """Write named tensors as safetensors, from whatever device they are on.

    Raises:
        StorageError: the place cannot be written.
    """
    contiguous = {name: value.detach().cpu().contiguous() for name, value in tensors.items()}
    with writing(path):
        path.touch()
        mode = path.stat().st_mode  # as the umask has it; safetensors' own files are for their owner alone
        save_file(contiguous, path, metadata={"format": "pt"})  # `transformers` reads no file without it
        path.chmod(mode)


def load_tensors(path: Path) -> dict[str, Tensor]:
    """Read a safetensors file.

    Raises:
        StorageError: missing, or not safetensors.
    """
    with reading(path):
        check_header(path)
        return load_file(path)


def check_header(path: Path) -> None:
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
        more = f"; and {len(found) - 6} more" if len(found) > 6 else ""
        raise StorageError(
            f"{folder}: the weights do not fit the settings of {type(module).__name__}: "
            f"{'; '.join(found[:6])}{more}; give the settings that it was trained with"
        )
    module.load_state_dict(dict(weights))


def under(prefix: str, weights: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """The weights whose name begins with `prefix` and a dot, by the rest of it."""
    start = f"{prefix}."
    return {name.removeprefix(start): value for name, value in weights.items() if name.startswith(start)}


def tensor_digests(tensors: Mapping[str, Tensor]) -> dict[str, str]:
    """Name -> a digest of a tensor's type, shape and bytes."""
    found = {}
    for name, value in tensors.items():
        plain = value.detach().cpu().contiguous()
        digest = hashlib.blake2b(f"{plain.dtype} {tuple(plain.shape)}".encode(), digest_size=16)
        digest.update(plain.reshape(-1).view(torch.uint8).numpy().data)
        found[name] = digest.hexdigest()
    return found
