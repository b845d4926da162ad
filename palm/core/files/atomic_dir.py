"""Atomic directories: they appear whole or not at all, and replace nothing but what palm wrote itself."""

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
from palm.core.files.manifest import is_sealed, manifest_of, seal, unchanged, verify
from palm.core.files.write_errors import STAGE, wrap_write_errors
from palm.core.logging import logger

WEIGHTS = ".safetensors"
"""End of the names of files of weights."""

MAX_NAMED = 3
"""Foreign files that a message names."""


@contextmanager
def new_directory(path: Path, overwrite: bool = False) -> Iterator[Path]:
    """A folder to fill that becomes `path` when the block ends well, and vanishes when it does not.

    Every file is flushed to the disk and entered in `manifest.json` with its size and SHA-256 first. A folder
    of a process that died meanwhile is removed by the next one for the same path.

    Args:
        path: is not there yet, or is empty.
        overwrite: also replace a folder that palm wrote, and that holds nothing else.

    Raises:
        StorageError: something else stands there, or the place cannot be written.
    """
    path = path if path.name not in ("", "..") else path.resolve()
    check_target(path, overwrite)
    with wrap_write_errors(path):
        door.make_folder(path.parent)
        with fs.staged(path) as stage:
            door.new_folder(part := stage / path.name)
            yield part
            # The manifest is written last: where it is, all that it lists is whole and on the disk.
            seal(part)
            check_target(path, overwrite)  # hours may lie between
            fs.tell_replaced(path, fs.replace_directory(part, path))


def linked_copy(source: Path, path: Path) -> None:
    """Put what palm wrote at `source` at `path`, too; its weights take no further place on the same disk.

    They may be one file under two names because nothing of palm writes into a file that has its name: folders
    are replaced as a whole. What people may edit, such as the card, is copied.

    Args:
        source: a folder with a manifest.
        path: is replaced, if palm wrote what is there.

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
    """Make the weights of a folder hard links to equal ones of other folders, where there are any.

    Args:
        folder: with a manifest.
        others: folders that may have the same weights; those without a manifest are skipped.
    """
    entries = manifest_of(folder)
    for other in others:
        theirs = manifest_of(other) if other != folder and is_sealed(other) else {}
        equal = [name for name in entries if name.endswith(WEIGHTS) and theirs.get(name) == entries[name]]
        for name in equal:
            original = other / name
            with suppress(OSError):
                # The manifest says what should be there; a file that was damaged since must not spread.
                is_whole = checksum(original) == entries[name]["sha256"]
                if is_whole and not original.samefile(folder / name):
                    # Beside the folder: a process that dies meanwhile leaves nothing in it.
                    with fs.staged(folder) as stage:
                        if door.hard_link(original, stage / WEIGHTS):
                            door.rename(stage / WEIGHTS, folder / name)


def check_target(path: Path, overwrite: bool = False, reads: Iterable[object] = ()) -> None:
    """Check that `new_directory` may write; `reads` is what it will be made of, and so not replaced.

    Raises:
        StorageError: it may not; names what is there and what to do.
    """
    if path.name in ("", ".."):
        raise StorageError(
            f"{str(path)!r} is a folder that is in use; give the path of a new one, such as {path / 'model'}"
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
            f"{path} is the folder of a run, and nothing of it is replaced; give the path of a new one"
        )
    if foreign := foreign_files(path):
        names = ", ".join(shortened(foreign, MAX_NAMED))
        raise StorageError(
            f"{path} holds what palm did not write ({names}), and nothing of it is replaced; "
            "give the path of a new folder, or move them elsewhere"
        )
    if not overwrite:
        raise StorageError(
            f"{path} holds what palm wrote before; give the path of a new folder, or replace it with "
            "--overwrite (in Python: overwrite=True)"
        )


def foreign_files(folder: Path) -> list[str]:
    """Return what a folder holds beside the manifest and the files that it lists, by name.

    Empty folders count.
    """
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
    """Give a folder or a file another name where palm would refuse to replace it; nothing of it is lost.

    For folders that a run must write after hours: a checkpoint of palm whose manifest is damaged, or files
    that somebody put there since the run began.
    """
    is_folder = path.is_dir() and not path.is_symlink()
    if not (foreign_files(path) if is_folder else door.is_plain(path) and not fs.is_written(path)):
        return
    places = (path.with_name(f"{path.name}.kept{number or ''}") for number in count())
    kept = next(place for place in places if not os.path.lexists(place))
    with wrap_write_errors(kept):
        door.rename(path, kept)
    logger.warning("%s is not as palm wrote it; it was renamed to %s", path, kept.name)


def remove_directory(folder: Path) -> None:
    """Remove a folder that palm wrote; what somebody else put there stays, under the folder's name.

    The folder loses its name first, so that no half of it is ever seen.
    """
    if not folder.is_dir() or folder.is_symlink() or foreign_files(folder):
        return
    with suppress(OSError), fs.staged(folder) as stage:
        door.rename(folder, stage / folder.name)


def remove_stale(folder: Path, is_ours: Callable[[str], bool], is_shared: bool = False) -> None:
    """Put back, or remove, what dead processes left unfinished under names of ours.

    Args:
        folder: where no other process of palm writes now, unless it is shared.
        is_ours: tells whether palm gives a name; it gets it without the dot before and the ending.
        is_shared: other processes may write there; only what processes of this host have left counts.
    """
    for place in list(folder.iterdir()) if folder.is_dir() and not folder.is_symlink() else ():
        match = STAGE.fullmatch(place.name)
        if match and is_ours(match[1]) and (fs.is_stale(place) or not is_shared):
            fs.recover(folder / match[1])
            fs.clear_stage(place)
