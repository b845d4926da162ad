"""File system errors and their remedies."""

from __future__ import annotations

import errno
import re
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from safetensors import SafetensorError

from palm.core.errors import StorageError

REMEDIES = {
    errno.ENOSPC: "the disk is full; free some space",
    getattr(errno, "EDQUOT", -1): "the disk quota is used up; free some space",
    errno.EROFS: "the file system is read-only; mount it for writing, or give a folder elsewhere",
    errno.EIO: "the disk reports an error; check it before you go on",
    errno.EACCES: "permission denied; give a folder that can be written",
    errno.EPERM: "not permitted; give a folder that can be written",
}
"""Error number -> its meaning and the remedy."""

STAGE = re.compile(r"\.(.+)\.([A-Za-z0-9]*)-(\d+)\.part")
"""Name of a stage (see `staged`): the target's name, the host and the process."""


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
        # Unfinished files are in a stage that the user does not know.
        parts = [part for part in path.parts if not STAGE.fullmatch(part)]
        raise StorageError(f"cannot write {Path(*parts)}: {reason}") from error
