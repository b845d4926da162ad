"""Directories with a manifest: they appear complete or not at all, and replace only what palm wrote."""

from __future__ import annotations

import hashlib
import json
import os
import shutil
from collections.abc import Collection, Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path, PurePosixPath
from typing import Any

from palm.core.differences import shortened
from palm.core.errors import StorageError
from palm.core.io import (
    check_not_read,
    checksum,
    discard,
    live,
    make_folder,
    read_object,
    remove,
    remove_stale,
    resolve_inside,
    set_aside,
    temporary,
    wrap_read_errors,
    wrap_write_errors,
)
from palm.core.logging import logger

MANIFEST = "manifest.json"


@contextmanager
def new_directory(path: Path, overwrite: bool = False) -> Iterator[Path]:
    """Yield a folder to fill; it becomes `path` if the block succeeds and is removed if it fails.

    Before that, every file is flushed to disk and listed in `manifest.json` with its size and SHA-256. If a
    process dies in between, the next writer of the same path removes its folder.

    Args:
        path: must not exist yet, or be an empty folder.
        overwrite: also replace a folder that palm wrote and that contains nothing else.

    Raises:
        StorageError: something else is at `path`, or it cannot be written.
    """
    path = path if path.name not in ("", "..") else path.resolve()
    check_target(path, overwrite)
    make_folder(path.parent)
    with wrap_write_errors(path), temporary(path) as part:
        part.mkdir()
        yield part
        # The manifest is written last: if it exists, all files that it lists are complete and on disk.
        seal(part)
        check_target(path, overwrite)  # hours may have passed since the first check
        _replace(part, path)
        _flush_folder(path.parent)


def _replace(part: Path, path: Path) -> None:
    if not path.exists():
        part.rename(path)
        return
    old = part.with_suffix(".old")
    live.add(old)
    path.rename(old)
    try:
        part.rename(path)
    except OSError:
        old.rename(path)
        raise
    finally:
        live.remove(old)
    remove(old)


def linked_copy(source: Path, path: Path) -> None:
    """Copy a folder that palm wrote; where the file system allows it, its weights take no extra space.

    Sharing weights is safe because palm never writes into a finished file: folders are replaced as a whole.
    Files that people may edit, such as the model card, are copied.

    Raises:
        StorageError: `source` is damaged, or `path` cannot be written.
    """
    with new_directory(path, overwrite=True) as part:
        for name in verify(source):
            make_folder((part / name).parent)
            if not (name.endswith(".safetensors") and _linked(source / name, part / name)):
                shutil.copyfile(source / name, part / name)


def _linked(source: Path, path: Path) -> bool:
    try:
        path.hardlink_to(source)
    except OSError:
        return False
    return True


def check_target(path: Path, overwrite: bool = False, reads: Iterable[object] = ()) -> None:
    """Check that `new_directory` may write, without replacing the sources in `reads`.

    Raises:
        StorageError: it may not; the message says what is there and what to do.
    """
    if path.name in ("", ".."):
        raise StorageError(
            f"{str(path)!r} is an existing folder; give the path of a new one, such as {path / 'model'}"
        )
    remove_stale(path.parent, path.name)
    if path.is_symlink() or (path.exists() and not path.is_dir()):
        kind = "link" if path.is_symlink() else "file"
        raise StorageError(f"{path} is a {kind}; give the path of a new folder")
    if not path.exists() or not any(path.iterdir()):
        return
    check_not_read(path, reads)
    if foreign := foreign_files(path):
        raise StorageError(
            f"{path} contains files that palm did not write ({', '.join(shortened(foreign, 3))}), so it will "
            "not be replaced; give the path of a new folder, or move them elsewhere"
        )
    if not overwrite:
        raise StorageError(
            f"{path} already contains output of palm; give the path of a new folder, or replace it with "
            "--overwrite (in Python: overwrite=True)"
        )


def foreign_files(folder: Path) -> list[str]:
    """List everything in a folder, empty folders included, that its manifest does not account for."""
    try:
        entries = manifest_of(folder)
    except StorageError:
        entries = {}
    ours = {MANIFEST} if entries else set()
    for name, entry in entries.items():
        place = folder / name
        if place.is_file() and not place.is_symlink() and place.stat().st_size == entry.get("size"):
            ours |= {name, *(parent.as_posix() for parent in PurePosixPath(name).parents)}
    names = (place.relative_to(folder).as_posix() for place in sorted(folder.rglob("*")))
    return [name for name in names if name not in ours]


def keep_foreign(path: Path) -> None:
    """Rename what `new_directory` would refuse to replace, for a run that saves after hours of training."""
    if os.path.lexists(path) and (path.is_symlink() or not path.is_dir() or foreign_files(path)):
        kept = set_aside(path)
        logger.warning("%s contains files that palm did not write; it was renamed to %s", path, kept.name)


def remove_directory(folder: Path) -> None:
    """Remove a folder that palm wrote; do nothing if it contains anything else."""
    if not folder.is_symlink() and not foreign_files(folder):
        discard(folder)


def seal(folder: Path) -> None:
    """List every file in `manifest.json` with its size and SHA-256, and flush all of them to disk."""
    files = sorted(file for file in folder.rglob("*") if file.is_file())
    entries = {
        file.relative_to(folder).as_posix(): {"size": file.stat().st_size, "sha256": checksum(file)}
        for file in files
    }
    (folder / MANIFEST).write_bytes(_manifest_text(entries).encode())
    for file in (*files, folder / MANIFEST):
        with file.open("rb+") as handle:
            os.fsync(handle.fileno())
    for place in {file.parent for file in files} | {folder}:
        _flush_folder(place)


def _flush_folder(folder: Path) -> None:
    with suppress(OSError):  # Windows and some network file systems refuse
        number = os.open(folder, os.O_RDONLY)
        try:
            os.fsync(number)
        finally:
            os.close(number)


def _manifest_text(entries: Mapping[str, Any]) -> str:
    """Return the text of the manifest with its own checksum; equal entries give equal texts."""
    digest = hashlib.sha256(json.dumps(entries).encode()).hexdigest()
    return json.dumps({"sha256": digest, "files": entries}, indent=2) + "\n"


def is_sealed(folder: Path) -> bool:
    """Check whether palm finished writing this directory."""
    return (folder / MANIFEST).is_file()


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
    entries = manifest_of(folder)
    with wrap_read_errors(folder / MANIFEST):
        names = sorted(entries, key=lambda name: entries[name]["size"])
    _check_files(folder, entries, [*needed, *names])
    return entries.keys()


def verified_object(folder: Path, name: str) -> dict[str, Any]:
    """Read a JSON object of a sealed directory after verifying only this file.

    Raises:
        StorageError: as in `verify`.
    """
    _check_files(folder, manifest_of(folder), [name])
    return read_object(folder / name)


def _check_files(folder: Path, entries: Mapping[str, Any], names: Iterable[str]) -> None:
    with wrap_read_errors(folder / MANIFEST):
        for name in names:
            if name not in entries:
                raise StorageError(f"{folder} is damaged: {MANIFEST} does not list {name}; use another")
            file = resolve_inside(folder, name)
            if file.stat().st_size != entries[name]["size"] or checksum(file) != entries[name]["sha256"]:
                raise StorageError(
                    f"{folder} is damaged: {name} differs from its checksum; use another, or copy it again"
                )


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
