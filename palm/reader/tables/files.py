"""The files of a table: from its path to local files in their order, and to their bytes."""

from __future__ import annotations

import bz2
import glob
import gzip
import hashlib
import lzma
import shutil
import tempfile
import zlib
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any, Literal, get_args

from palm.core.errors import DataError
from palm.core.files.checksum import checksum
from palm.core.files.untrusted import POINTER, is_pointer, read_object
from palm.reader.tables.remote import copies_of, is_address

TableFormat = Literal["tsv", "csv", "jsonl", "parquet", "arrow", "squad"]

FORMATS: dict[str, TableFormat] = {
    **{f".{kind}": kind for kind in get_args(TableFormat) if kind != "squad"},
    ".ndjson": "jsonl",
}
"""The endings of names that tell a format."""

_FOREIGN = {
    b"PK\3\4": "a ZIP archive, as Excel's files are",
    b"\xd0\xcf\x11\xe0": "a file of Excel",
    b"\x80": "a pickle",
    b"\x1f\x8b": "packed by gzip without the ending .gz",
}
"""The first bytes of files that are sometimes taken for tables."""

_PACKED: dict[str, Callable[..., Any]] = {".gz": gzip.open, ".bz2": bz2.open, ".xz": lzma.open}


def format_of(file: Path) -> TableFormat | None:
    """The format that a file's name tells, `.gz` and its like left aside; None for any other name."""
    endings = [ending.lower() for ending in file.suffixes[-2:]]
    if endings and endings[-1] in _PACKED:
        endings.pop()
    return FORMATS.get(endings[-1]) if endings else None


def files_of(path: Path) -> list[Path]:
    """The local files of a table: of a folder or a pattern in the order of their names.

    Args:
        path: a file, a folder, a pattern such as `part-*.csv`, an address, which is copied first, or several
            of these with commas between.

    Raises:
        DataError: there are none.
    """
    if path.is_file():
        return [path]
    if path.is_dir():
        found = _files_in(path)
    elif "," in str(path):
        found = [file for part in str(path).split(",") for file in files_of(Path(part.strip()))]
    elif is_address(path):
        found = list(copies_of(path))
    else:
        found = [Path(name) for name in sorted(glob.glob(str(path))) if Path(name).is_file()]  # noqa: PTH207
    if not found:
        raise DataError(f"{path}: cannot read the data file ({absence(path)})")
    return found


def absence(path: Path) -> str:
    """Say in what way a path leads to no data."""
    if path.is_dir():
        return "no table in this folder"
    return "no plain file" if path.exists() else "no such file"


def _files_in(folder: Path) -> list[Path]:
    """The tables in a folder; of one that Hugging Face's `datasets` saved, those that its state names."""
    state = folder / "state.json"
    if state.is_file():
        parts = read_object(state).get("_data_files", [])
        return [folder / Path(str(part["filename"])).name for part in parts]
    files = (file for file in folder.iterdir() if not file.name.startswith(".") and file.is_file())
    return sorted(file for file in files if format_of(file) is not None)


def is_data(path: Path) -> bool:
    """Tell whether a path leads to a table, or to any other data file; an address is not asked."""
    try:
        return is_address(path) or bool(files_of(path))
    except (DataError, OSError):  # such as a name that is too long
        return False


def digest_of(files: Sequence[Path], algorithm: str = "sha256") -> str:
    """The hexadecimal hash of a file's bytes; of several files, the hash of their hashes.

    Raises:
        OSError: one cannot be read.
    """
    parts = [checksum(file, algorithm) for file in files]
    return parts[0] if len(parts) == 1 else hashlib.new(algorithm, "".join(parts).encode()).hexdigest()


def data_size(path: Path) -> int:
    """The bytes of a data file, or of all files of a table."""
    return sum(file.stat().st_size for file in files_of(path))


@contextmanager
def opened(file: Path) -> Iterator[IO[bytes]]:
    """The bytes of a data file, unpacked while they are read.

    Raises:
        DataError: no such file, or a damaged one.
    """
    opener = _PACKED.get(file.suffix.lower(), open)
    try:
        with opener(file, "rb") as stream:
            start = stream.peek(64)
            if is_pointer(start):
                raise DataError(f"{file}: cannot read the data file ({POINTER})")
            if kinds := [kind for each, kind in _FOREIGN.items() if start.startswith(each)]:
                raise DataError(f"{file}: it is {kinds[0]}, and no table; save it as CSV, or name its format")
            yield stream
    except (OSError, EOFError, zlib.error, lzma.LZMAError) as error:
        reason = getattr(error, "strerror", None) or error
        raise DataError(f"{file}: cannot read the data file ({reason})") from error


@contextmanager
def seekable(file: Path) -> Iterator[IO[bytes]]:
    """The bytes of a data file, in any order; a packed one is unpacked into a temporary file first.

    Raises:
        DataError: as `opened`.
    """
    with opened(file) as stream:
        if file.suffix.lower() not in _PACKED:
            yield stream
            return
        with tempfile.TemporaryFile() as whole:
            shutil.copyfileobj(stream, whole)
            whole.seek(0)
            yield whole
