"""Files and directories that appear whole or not at all."""

from __future__ import annotations

import errno
import hashlib
import json
import os
import re
import shutil
import socket
import struct
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from itertools import chain, count
from pathlib import Path, PurePosixPath
from typing import Any, BinaryIO

from filelock import FileLock, SoftFileLock, Timeout
from safetensors import SafetensorError

from palm.core.errors import DataError, PalmError, StorageError, shortened
from palm.core.logging import logger

MAX_JSON = 1 << 24
"""Bytes: 16 MiB, a hundred times any description; parsed, it takes up to 25 times as much memory."""

MAX_DIGITS = 400
"""Digits of an integer; no float64 has more, and Python's own limit depends on how it was started."""

POINTER = "it is a Git LFS pointer, not the file itself; run git lfs pull to fetch it"

REMEDIES = {
    errno.ENOSPC: "the disk is full; free some space",
    getattr(errno, "EDQUOT", -1): "the disk quota is used up; free some space",
    errno.EROFS: "the file system is read-only; mount it for writing, or give a folder elsewhere",
    errno.EIO: "the disk reports an error; check it before you go on",
    errno.EACCES: "permission denied; give a folder that can be written",
    errno.EPERM: "not permitted; give a folder that can be written",
}
"""Error number -> its meaning and the remedy."""

_LEADS_OUT = re.compile(r"[\\:\0]")
"""Characters that Windows would take for another folder or drive, and NUL, which no file system allows."""

_TEMPORARY = re.compile(r"\.(.+)\.([A-Za-z0-9]*)-(\d+)\.(part|old)")
"""Name of what is being written (`part`) or replaced (`old`): the final name, the host and the process."""

live: set[Path] = set()
"""Temporaries of this process."""

_weights: dict[str, tuple[Path, str]] = {}
"""SHA-256 -> the directory and the name of a file of weights that this process has written."""


# Reading


@contextmanager
def wrap_read_errors(place: object, form: str = "", error: type[PalmError] = StorageError) -> Iterator[None]:
    """Turn every exception raised while untrusted bytes are read into a PalmError that names the file.

    The exceptions that parsers (ours, numpy's, a library's) raise on malformed bytes cannot be listed, so all
    are caught here, once for every format; the original is the error's `__cause__`. A PalmError passes
    through, and so does MemoryError: sizes are bounded before allocation, so the machine is too small.

    Args:
        place: the file.
        form: its format (" as a Paddle variable"), or the part that is read (" the vocabulary").
        error: the class to raise; messages of a DataError begin with their place.
    """
    message = f"{place}: cannot read{form}" if error is DataError else f"cannot read {place}{form}"
    try:
        yield
    except (PalmError, MemoryError):
        raise
    except Exception as problem:
        reason = POINTER if isinstance(place, Path) and _names_pointer(place) else describe_error(problem)
        raise error(f"{message}: {reason}") from problem
    except BaseException as problem:
        # The library `tokenizers` raises this if its Rust code panics; it does not derive from Exception.
        if type(problem).__name__ != "PanicException":
            raise
        raise error(f"{message}: {describe_error(problem)}") from problem


def is_pointer(start: bytes) -> bool:
    """Check whether a file with this beginning is a Git LFS pointer."""
    return start.startswith(b"version https://git-lfs.github.com/spec/")


def _names_pointer(path: Path) -> bool:
    with suppress(OSError), path.open("rb") as file:
        return is_pointer(file.read(64))
    return False


def describe_error(problem: BaseException) -> str:
    """Return the reason why untrusted bytes could not be read, in one line."""
    if isinstance(problem, RecursionError):
        return "it is nested too deeply"
    if isinstance(problem, KeyError):
        return f"{problem} is missing"
    if isinstance(problem, AttributeError | TypeError | AssertionError):  # a value of another kind
        return f"it is malformed ({problem or type(problem).__name__})"
    if isinstance(problem, struct.error | EOFError):
        return f"it is truncated, or has another format ({problem})"
    if isinstance(problem, json.JSONDecodeError):
        return f"it is not JSON: {problem}"
    if isinstance(problem, UnicodeDecodeError):
        byte = problem.object[problem.start]
        line = problem.object[: problem.start].count(b"\n") + 1
        return f"it is not UTF-8 text: byte {problem.start}, in line {line}, is {byte:#04x}; save it as UTF-8"
    # torch puts a traceback of its own below the first line.
    return next(iter(str(problem).splitlines()), "")[:500] or type(problem).__name__


def read_bytes(path: Path, limit: int = MAX_JSON) -> bytes:
    """Read a file that should be small.

    Raises:
        OSError: it cannot be read.
        ValueError: it is larger than `limit` bytes, or not a regular file.
    """
    if path.exists() and not path.is_file():
        raise ValueError("it is not a regular file")
    with path.open("rb") as file:
        # One byte more, to see whether there is more; the size from `stat` may change meanwhile.
        data = file.read(limit + 1)
    if len(data) > limit:
        raise ValueError(f"it is larger than {limit >> 20} MiB, the limit for such files")
    if is_pointer(data):
        raise ValueError(POINTER)
    return data


def parse_json(data: bytes, unique: bool = False) -> Any:
    """Parse JSON in UTF-8; with `unique`, no object may have the same key twice.

    Raises:
        ValueError: it is not JSON, has an integer of more than `MAX_DIGITS` digits or an unpaired surrogate.
        RecursionError: it is nested deeper than Python's stack allows.
    """
    # Editors on Windows add a byte-order mark, which `json` refuses.
    text = data.decode("utf-8-sig")
    value = json.loads(text, parse_int=_integer, object_pairs_hook=unique_keys if unique else None)
    if "\\u" in text:  # an escaped unpaired surrogate can be read, but neither written nor printed
        json.dumps(value, ensure_ascii=False).encode()
    return value


def unique_keys(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """Build a JSON object from its pairs.

    Raises:
        ValueError: a key occurs twice; names it.
    """
    found = dict(pairs)
    if len(found) < len(pairs):
        keys = [key for key, _ in pairs]
        raise ValueError(f"it has {', '.join(repr(key) for key in found if keys.count(key) > 1)} twice")
    return found


def _integer(digits: str) -> int:
    if len(digits) > MAX_DIGITS:
        raise ValueError(f"an integer has {len(digits)} digits; the limit is {MAX_DIGITS}")
    return int(digits)


def read_json(path: Path) -> Any:
    """Read a JSON file.

    Raises:
        StorageError: it is missing, not JSON, or larger than `MAX_JSON`.
    """
    with wrap_read_errors(path):
        return parse_json(read_bytes(path))


def read_object(path: Path) -> dict[str, Any]:
    """Read a JSON file that holds an object.

    Raises:
        StorageError: as in `read_json`, or it contains another type.
    """
    content = read_json(path)
    if not isinstance(content, dict):
        raise StorageError(f"cannot read {path}: expected a JSON object, not {type(content).__name__}")
    return content


def check_plain(path: Path) -> None:
    """Check that a file in a folder from elsewhere is a regular file; a link could lead to any file.

    Raises:
        StorageError: it is a link or a special file.
    """
    if path.is_symlink() or (path.exists() and not path.is_file()):
        raise StorageError(f"{path} is not a regular file; put a copy in its place")


def is_inside(name: object) -> bool:
    """Check whether a name stays below its folder; links are not considered."""
    if not isinstance(name, str) or not name or _LEADS_OUT.search(name):
        return False
    place = PurePosixPath(name)
    return ".." not in place.parts and not place.is_absolute()


def stays_inside(folder: Path, path: Path) -> bool:
    """Check whether a path below a folder stays there when its links are followed."""
    return path.resolve().is_relative_to(folder.resolve())


def resolve_inside(folder: Path, name: object) -> Path:
    """Return the path of a file named in a directory; the file must be inside it.

    Symbolic links may lead elsewhere in the directory and, if it is a snapshot in Hugging Face's cache, to
    the `blobs` of that cache.

    Raises:
        StorageError: the name leads out of the directory, or not to a regular file.
    """
    if not isinstance(name, str) or not is_inside(name):
        raise StorageError(f"{folder} is unsafe: it names the file {name!r}, which would be outside of it")
    path = folder / name
    root = folder.resolve()
    roots = [root, *([root.parent.parent / "blobs"] if root.parent.name == "snapshots" else [])]
    if not any(path.resolve().is_relative_to(place) for place in roots):
        raise StorageError(f"{folder} is unsafe: it names the file {name!r}, which is outside of it")
    if not path.is_file():
        raise StorageError(f"{folder} is damaged: {name} is missing; use another, or copy it again")
    return path


def checksum(path: Path, algorithm: str = "sha256") -> str:
    """Return the hexadecimal hash of a file, read block by block.

    Raises:
        OSError: it cannot be read.
    """
    digest = hashlib.new(algorithm)
    with path.open("rb") as file:
        while block := file.read(1 << 17):
            digest.update(block)
    return digest.hexdigest()


def numbered(folder: Path, start: str) -> dict[int, Path]:
    """Return the directories `<start><number>` in a folder, by number; links do not count."""
    return {
        int(match[1]): path
        for path in (folder.iterdir() if folder.is_dir() else ())
        if (match := re.fullmatch(re.escape(start) + r"(\d+)", path.name)) and not path.is_symlink()
    }


# Writing


@contextmanager
def wrap_write_errors(path: Path) -> Iterator[None]:
    """Turn errors of the file system into a StorageError that names `path` and the remedy.

    Raises:
        StorageError: instead of `OSError`, the `SafetensorError` that wraps one, and `UnicodeEncodeError`.
    """
    try:
        yield
    except UnicodeEncodeError as error:  # Python reads such names as unpaired surrogates
        name = error.object[max(0, error.start - 30) : error.end + 30].splitlines()[0]
        raise StorageError(
            f"cannot write {path}: {name!r} is not UTF-8; rename that file or folder"
        ) from error
    except (OSError, SafetensorError) as error:
        number = getattr(error, "errno", None)
        if number is None:  # safetensors gives the number only in its text: "… (os error 28)"
            number = next((code for code in REMEDIES if f"(os error {code})" in str(error)), None)
        reason = getattr(error, "strerror", None) or error
        if file := getattr(error, "filename", None):
            reason = f"{reason}: {file}"
        reason = REMEDIES.get(number, f"{reason}; give a folder that can be written")
        # Users do not know the folder in which a directory is built.
        parts = [match[1] if (match := _TEMPORARY.fullmatch(part)) else part for part in path.parts]
        raise StorageError(f"cannot write {Path(*parts)}: {reason}") from error


def make_folder(folder: Path) -> None:
    """Create a folder and its parents where they are missing.

    Raises:
        StorageError: it cannot be created, or something else has its name.
    """
    with wrap_write_errors(folder):
        folder.mkdir(parents=True, exist_ok=True)


@contextmanager
def write_atomically(path: Path) -> Iterator[BinaryIO]:
    """Yield a new file to write, which replaces `path` if the block succeeds.

    Raises:
        StorageError: the file cannot be written.
    """
    if path.exists() and not path.is_file():
        raise StorageError(f"{path} is not a regular file, so it will not be replaced; give another path")
    with wrap_write_errors(path), temporary(path) as part:
        with part.open("xb") as file:
            yield file
            file.flush()
            os.fsync(file.fileno())
        os.replace(part, path)  # noqa: PTH105


def write_text(path: Path, text: str) -> None:
    """Write a UTF-8 file atomically.

    Raises:
        StorageError: the file cannot be written.
    """
    with write_atomically(path) as file:
        file.write(text.encode())


def write_json(path: Path, value: Any) -> None:
    """Write a value as indented UTF-8 JSON, atomically; errors as in `write_text`."""
    write_text(path, json.dumps(value, ensure_ascii=False, indent=2) + "\n")


def check_not_read(path: Path, reads: Iterable[object]) -> None:
    """Check that a file or folder to be written neither is nor contains one of its sources.

    Raises:
        StorageError: it does; the message names the source.
    """
    for source in reads:
        if isinstance(source, str | Path) and Path(source).resolve().is_relative_to(path.resolve()):
            raise StorageError(f"writing {path} would replace its source, {source}; give another path")


@contextmanager
def locked(path: Path, work: str = "", taken: str = "") -> Iterator[None]:
    """Hold the lock of a file; wait for another process that has it, or fail at once.

    The system releases the lock of a process that dies. On a file system without locks, nothing is locked.

    Args:
        path: the file; created if it is missing.
        work: what the other process is doing, for the log line about waiting.
        taken: the message of the error if another process has the lock; "" to wait for it.

    Raises:
        StorageError: the file cannot be created, or another process has the lock and `taken` is given.
    """
    lock = FileLock(path)
    with wrap_write_errors(path):
        path.touch()
    try:
        lock.acquire(blocking=False)
    except Timeout:  # first, since it is an OSError too
        # Without flock, filelock uses the existence of a file as the lock, which outlives the process.
        is_held = not isinstance(lock, SoftFileLock)
        if is_held and taken:
            raise StorageError(taken) from None
        if is_held:
            logger.info("waiting for another process that is %s", work)
            lock.acquire()
    except (OSError, NotImplementedError):
        pass  # a file system without locks
    if taken and not lock.is_locked:
        logger.warning("%s has no file locks; make sure that nothing else uses it", path.parent)
    try:
        yield
    finally:
        lock.release()


@contextmanager
def temporary(path: Path) -> Iterator[Path]:
    """Yield a free name beside `path`, where a rename is atomic; what has this name is removed afterwards.

    Raises:
        StorageError: another thread of this process writes the same path.
    """
    part = path.absolute().with_name(f".{path.name}.{_host()}-{os.getpid()}.part")
    if part in live:
        raise StorageError(f"another thread of this program is writing {path}; give another path")
    remove_stale(path.parent, path.name)
    live.add(part)
    try:
        yield part
    finally:
        live.remove(part)
        remove(part)


def remove_stale(folder: Path, name: str | None = None, is_locked: bool = False) -> None:
    """Remove what dead processes of this host left in a folder, and put back what they were replacing.

    Args:
        folder: the folder; its subfolders are left alone.
        name: remove only temporaries for this file or folder.
        is_locked: no other process writes there, so that temporaries of other hosts are stale, too.
    """
    for place in list(folder.iterdir()) if folder.is_dir() else ():
        match = _TEMPORARY.fullmatch(place.name)
        if match is None or name not in (None, match[1]) or place.absolute() in live:
            continue
        if is_locked or (match[2] == _host() and not _is_alive(int(match[3]))):
            target = place.with_name(match[1])
            if match[4] == "old" and not target.exists():
                with suppress(OSError):  # another process was first
                    place.rename(target)
            else:
                remove(place)


def _host() -> str:
    return "".join(letter for letter in socket.gethostname() if letter.isalnum())[:32]


def _is_alive(process: int) -> bool:
    """Check whether this host has another process with that number."""
    if process == os.getpid():  # a container gives the same number to every start
        return False
    with suppress(PermissionError):  # the process belongs to another user
        if os.name == "posix":  # signal 0 would end the process elsewhere
            try:
                os.kill(process, 0)
            except (ProcessLookupError, OverflowError):  # the number comes from a file name
                return False
    return True


def remove(place: Path) -> None:
    """Remove a file, a link or a folder with its contents, as far as the system allows it."""
    with suppress(OSError):
        if place.is_dir() and not place.is_symlink():
            shutil.rmtree(place, ignore_errors=True)
        else:
            place.unlink(missing_ok=True)


def set_aside(path: Path, is_disposable: Callable[[Path], bool] = lambda _: False) -> Path:
    """Rename a file or folder to `<name>.previous`, so that nothing in it is lost, and return that path.

    Args:
        path: the file or folder.
        is_disposable: called with what has that name already; True if it may be removed. Otherwise the next
            free of `<name>.previous.2`, `<name>.previous.3` … is taken.

    Raises:
        StorageError: it cannot be renamed.
    """
    path = path.resolve()
    previous = path.with_name(f"{path.name}.previous")
    if previous.is_dir() and not previous.is_symlink() and is_disposable(previous):
        discard(previous)
    places = chain([previous], (previous.with_name(f"{previous.name}.{number}") for number in count(2)))
    place = next(place for place in places if not os.path.lexists(place))
    with wrap_write_errors(place):
        path.rename(place)
    return place


def discard(folder: Path) -> None:
    """Remove a folder; it is renamed first, so that nobody sees a half-removed one."""
    with suppress(OSError), temporary(folder) as part:
        folder.rename(part)


MANIFEST = "manifest.json"


@contextmanager
def new_directory(path: Path, overwrite: bool = False) -> Iterator[Path]:
    """Yield a folder to fill; it becomes `path` if the block succeeds and is removed if it fails.

    Before that, every file is flushed to disk and listed in `manifest.json` with its size and SHA-256.
    Weights that this process has written before become hard links, if the file system has them. If a process
    dies in between, the next writer of the same path removes its folder.

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
        entries = seal(part)
        check_target(path, overwrite)  # hours may have passed since the first check
        _replace(part, path)
        _flush_folder(path.parent)
    _weights.update({entries[name]["sha256"]: (path, name) for name in entries if _is_weights(name)})


def _is_weights(name: str) -> bool:
    return name.endswith(".safetensors")


def _share(file: Path, entry: Mapping[str, Any]) -> None:
    """Make weights a hard link to equal ones that this process has written, if that is possible.

    This is safe because palm never writes into a finished file: folders are replaced as a whole.
    """
    with suppress(KeyError, OSError, StorageError):
        folder, name = _weights[entry["sha256"]]
        _check_files(folder, {name: entry}, [name])
        if (folder / name).stat().st_mode != file.stat().st_mode:
            return
        twin = file.with_name(f"{file.name}.twin")
        twin.hardlink_to(folder / name)
        twin.replace(file)


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


def copy_directory(source: Path, path: Path) -> None:
    """Copy a folder that palm wrote.

    Raises:
        StorageError: `source` is damaged, or `path` cannot be written.
    """
    with new_directory(path, overwrite=True) as part:
        for name in verify(source):
            make_folder((part / name).parent)
            shutil.copyfile(source / name, part / name)


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


def seal(folder: Path) -> dict[str, dict[str, Any]]:
    """List every file in `manifest.json` with its size and SHA-256, and flush all of them to disk."""
    files = sorted(file for file in folder.rglob("*") if file.is_file())
    entries = {
        file.relative_to(folder).as_posix(): {"size": file.stat().st_size, "sha256": checksum(file)}
        for file in files
    }
    for name in filter(_is_weights, entries):
        _share(folder / name, entries[name])
    (folder / MANIFEST).write_bytes(_manifest_text(entries).encode())
    for file in (*files, folder / MANIFEST):
        with file.open("rb+") as handle:
            os.fsync(handle.fileno())
    for place in {file.parent for file in files} | {folder}:
        _flush_folder(place)
    return entries


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
