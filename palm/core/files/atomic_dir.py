"""Atomic directories: they appear complete or not at all, and replace only what palm wrote."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from itertools import count
from pathlib import Path

from palm.core.differences import shortened
from palm.core.errors import StorageError
from palm.core.files import door, fs
from palm.core.files.checksum import checksum
from palm.core.files.fs import WRITTEN
from palm.core.files.manifest import MANIFEST, is_sealed, manifest_of, seal, unchanged, verify
from palm.core.files.write_errors import STAGE, wrap_write_errors
from palm.core.logging import logger

WEIGHTS = ".safetensors"
"""Suffix of weight files."""

MAX_NAMED = 3
"""Maximum number of foreign files that a message lists."""


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
    with wrap_write_errors(path):
        door.make_folder(path.parent)
        with fs.staged(path) as stage:
            door.new_folder(part := stage / path.name)
            yield part
            # The manifest is written last: if it exists, all files that it lists are complete and on disk.
            seal(part)
            check_target(path, overwrite)  # hours may have passed since the first check
            fs.log_replaced(path, fs.replace_directory(part, path))
            for old in (part, part.with_name(fs.OLD)):
                _keep_if_extended(old, path)


def linked_copy(source: Path, path: Path) -> None:
    """Copy a folder that palm wrote; on the same disk, its weights are hard-linked and take no extra space.

    Sharing the weight files is safe because palm never writes into a finished file: folders are replaced as a
    whole. Files that people may edit, such as the model card, are copied.

    Args:
        source: a folder with a manifest.
        path: the copy; replaced if palm wrote it.

    Raises:
        StorageError: `source` is damaged, or `path` cannot be written.
    """
    names = verify(source)
    with new_directory(path, overwrite=True) as part:
        for name in names:
            door.make_folder((part / name).parent)
            if not (name.endswith(WEIGHTS) and door.hard_link(source / name, part / name)):
                door.copy(source / name, part / name)


def link_equal_weights(folder: Path, others: Sequence[Path]) -> None:
    """Replace the weights of a folder by hard links to equal weights in other folders.

    Args:
        folder: a folder with a manifest.
        others: folders that may contain the same weights; those without a manifest are skipped.
    """
    entries = manifest_of(folder)
    for other in others:
        theirs = manifest_of(other) if other != folder and is_sealed(other) else {}
        equal = [name for name in entries if name.endswith(WEIGHTS) and theirs.get(name) == entries[name]]
        for name in equal:
            original = other / name
            with suppress(OSError):
                # The file may have been damaged since the manifest was written; do not spread it.
                is_whole = checksum(original) == entries[name]["sha256"]
                if is_whole and not original.samefile(folder / name):
                    # Beside the folder, so that a process that dies here leaves nothing in it.
                    with fs.staged(folder) as stage:
                        if door.hard_link(original, stage / WEIGHTS):
                            door.rename(stage / WEIGHTS, folder / name)


def check_target(path: Path, overwrite: bool = False, reads: Iterable[object] = ()) -> None:
    """Check that `new_directory` may write, without replacing the sources in `reads`.

    Raises:
        StorageError: it may not; the message says what is there and what to do.
    """
    if path.name in ("", ".."):
        raise StorageError(
            f"{str(path)!r} is an existing folder; give the path of a new one, such as {path / 'model'}"
        )
    fs.recover(path)
    if path.is_symlink():
        raise StorageError(f"{path} is a link to {os.readlink(path)}; give the path of a new folder")  # noqa: PTH115
    if path.exists() and not path.is_dir():
        raise StorageError(f"{path} is a file; give the path of a new folder")
    if not path.exists() or not any(path.iterdir()):
        return
    fs.check_not_read(path, reads)
    if (path / WRITTEN).exists():
        raise StorageError(
            f"{path} is the folder of a run and will not be replaced; give the path of a new one"
        )
    if foreign := foreign_files(path):
        names = ", ".join(shortened(foreign, MAX_NAMED))
        raise StorageError(
            f"{path} contains files that palm did not write ({names}), so it will not be replaced; "
            "give the path of a new folder, or move them elsewhere"
        )
    if not overwrite:
        raise StorageError(
            f"{path} already contains output of palm; give the path of a new folder, or replace it with "
            "--overwrite (in Python: overwrite=True)"
        )


def foreign_files(folder: Path) -> list[str]:
    """List everything in a folder, empty folders included, that its manifest does not account for."""
    ours = unchanged(folder)
    parents = {parent.as_posix() for name in ours for parent in Path(name).parents}
    foreign = []
    for file in sorted(folder.rglob("*")):
        name = file.relative_to(folder).as_posix()
        is_folder = file.is_dir() and not file.is_symlink()
        if name not in (parents if is_folder else ours):
            foreign.append(name)
    return foreign


def move_foreign_aside(path: Path) -> None:
    """Rename a folder or file that palm would refuse to replace, so that nothing is lost.

    For a run that must write a folder after hours of training and finds a checkpoint with a damaged manifest
    there, or files that somebody added since the run began.
    """
    is_folder = path.is_dir() and not path.is_symlink()
    if not (foreign_files(path) if is_folder else door.is_plain(path) and not fs.is_written(path)):
        return
    _keep(path, path)


def _keep_if_extended(old: Path, path: Path) -> None:
    """Keep a folder that was at `path` if a file was added to it after it was checked for foreign files."""
    listed = {MANIFEST, *manifest_of(old)} if is_sealed(old) else set()
    if any(file.is_file() and file.relative_to(old).as_posix() not in listed for file in old.rglob("*")):
        _keep(old, path)


def _keep(old: Path, path: Path) -> None:
    """Rename what was at `path` to a free name beside it."""
    places = (path.with_name(f"{path.name}.kept{number or ''}") for number in count())
    kept = next(place for place in places if not os.path.lexists(place))
    with wrap_write_errors(kept):
        door.rename(old, kept)
    logger.warning("%s was changed after palm wrote it; it was renamed to %s", path, kept.name)


def remove_directory(folder: Path) -> None:
    """Remove a folder that palm wrote; do nothing if it contains files of others.

    The folder is renamed first, so that nobody sees a half-removed one.
    """
    if not folder.is_dir() or folder.is_symlink() or foreign_files(folder):
        return
    with suppress(OSError), fs.staged(folder) as stage:
        door.rename(folder, stage / folder.name)
        _keep_if_extended(stage / folder.name, folder)


def remove_stale(folder: Path, is_ours: Callable[[str], bool], is_shared: bool = False) -> None:
    """Restore or remove the temporaries that dead processes left in a folder.

    Args:
        folder: no other palm process may be writing there, unless `is_shared`.
        is_ours: True for names that palm uses; called without the leading dot and the suffix.
        is_shared: other processes may write there, so only temporaries of this host's dead processes count.
    """
    for place in list(folder.iterdir()) if folder.is_dir() and not folder.is_symlink() else ():
        match = STAGE.fullmatch(place.name)
        if match and is_ours(match[1]) and (fs.is_stale(place) or not is_shared):
            fs.clear_stage(place, folder / match[1])
