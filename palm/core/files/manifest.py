"""The manifest of a model or checkpoint: sizes and checksums of its files."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Collection, Iterable, Mapping
from pathlib import Path
from typing import Any

from palm.core.errors import StorageError
from palm.core.files.checksum import checksum
from palm.core.files.door import has_link, is_plain
from palm.core.files.fs import flush, flush_folder, recover, write_text
from palm.core.files.untrusted import is_inside, read_object, resolve_inside, wrap_read_errors

MANIFEST = "manifest.json"


def seal(folder: Path) -> None:
    """List every file in `manifest.json` with its size and SHA-256, and flush all of them to disk."""
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
    """Return the text of the manifest with its own checksum; equal entries give equal texts."""
    digest = hashlib.sha256(json.dumps(entries).encode()).hexdigest()
    return json.dumps({"sha256": digest, "files": entries}, indent=2) + "\n"


def manifest_of(folder: Path) -> dict[str, dict[str, Any]]:
    """Return the files of a sealed directory with sizes and checksums, after verifying the manifest itself.

    Raises:
        StorageError: not a sealed directory, or its manifest is damaged.
    """
    file = folder / MANIFEST
    if not is_sealed(folder):
        raise StorageError(f"{folder} is not a directory that palm saved: it has no {MANIFEST}")
    try:
        with wrap_read_errors(file):
            entries: dict[str, dict[str, Any]] = read_object(file)["files"]
            # Compare the text instead of the values, to notice a damaged space or quote too.
            if _manifest_text(dict(entries)).encode() != file.read_bytes():
                raise StorageError(f"{MANIFEST} differs from its own checksum")
    except StorageError as error:
        raise StorageError(f"{folder} is damaged: {error}; use another, or copy it again") from error
    return entries


def verify(folder: Path, needed: Collection[str] = ()) -> Collection[str]:
    """Check every file of a sealed directory against its manifest, small ones first.

    Args:
        folder: the directory.
        needed: files that must be listed.

    Returns:
        The names of its files.

    Raises:
        StorageError: not a sealed directory, or a file is missing, cut short or changed.
    """
    recover(folder)
    entries = manifest_of(folder)
    _check_files(folder, entries, [*needed, *sorted(entries, key=lambda name: entries[name]["size"])])
    return entries.keys()


def verified_object(folder: Path, name: str) -> dict[str, Any]:
    """Read a JSON object of a sealed directory after verifying only this file.

    Raises:
        StorageError: as in `verify`.
    """
    _check_files(folder, manifest_of(folder), [name])
    return read_object(folder / name)


def check_version(saved: Mapping[str, Any], expected: tuple[str, int], file: Path, remedy: str) -> None:
    """Check that this version of palm reads the format that a file of a directory declares.

    Raises:
        StorageError: another version of palm wrote it, or the format is missing.
    """
    with wrap_read_errors(file):
        found = (saved["format"], saved["version"])
    if found != expected:
        raise StorageError(
            f"{file.parent} has the format {found[0]!r} version {found[1]!r}; this version of palm reads "
            f"{expected[0]!r} version {expected[1]}; {remedy}"
        )


def unchanged(folder: Path) -> set[str]:
    """Return the names of the manifest and of the files that still match it and are not behind a link.

    Nothing, if the manifest is damaged or names anything outside of the folder.
    """
    try:
        entries = manifest_of(folder)
    except StorageError:
        return set()
    if not all(is_inside(name) for name in entries):
        return set()
    return {MANIFEST, *(name for name, entry in entries.items() if _is_unchanged(folder, name, entry))}


def _is_unchanged(folder: Path, name: str, entry: Any) -> bool:
    file = folder / name
    with wrap_read_errors(file):
        return is_plain(file) and not has_link(file, folder) and _has_checksum(file, entry)


def _has_checksum(file: Path, entry: Any) -> bool:
    return bool(file.stat().st_size == entry["size"] and checksum(file) == entry["sha256"])


def _check_files(folder: Path, entries: Mapping[str, Any], names: Iterable[str]) -> None:
    with wrap_read_errors(folder / MANIFEST):
        for name in names:
            if name not in entries:
                raise StorageError(f"{folder} is damaged: {MANIFEST} does not list {name}; use another")
            if not _has_checksum(resolve_inside(folder, name), entries[name]):
                raise StorageError(
                    f"{folder} is damaged: {name} differs from its checksum; use another, or copy it again"
                )


def is_sealed(folder: Path) -> bool:
    """Check whether palm finished writing this directory."""
    return (folder / MANIFEST).is_file()
