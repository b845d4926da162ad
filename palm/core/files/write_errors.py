"""Errors of the file system with their remedies."""

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
    errno.EIO: "the disk reports an error; look at its state before you go on",
    errno.EACCES: "permission denied; give a folder that can be written",
    errno.EPERM: "not permitted; give a folder that can be written",
}
"""Error number -> what it means and what to do."""

STAGE = re.compile(r"\.(.+)\.([A-Za-z0-9]*)-(\d+)\.part")
"""The name of a folder in which something is made (see `staged`): of what, and by which host and process."""


@contextmanager
def wrap_write_errors(path: Path) -> Iterator[None]:
    """Turn what the operating system refuses into an error that names `path` and the remedy.

    Raises:
        StorageError: in place of `OSError`, and of what safetensors makes of one.
    """
    try:
        yield
    except (OSError, SafetensorError) as error:
        number = getattr(error, "errno", None)
        if number is None:  # safetensors has the number in its text alone: "… (os error 28)"
            number = next((code for code in REMEDIES if f"(os error {code})" in str(error)), None)
        reason = getattr(error, "strerror", None) or error
        if file := getattr(error, "filename", None):
            reason = f"{reason}: {file}"
        reason = REMEDIES.get(number, f"{reason}; give a folder that can be written")
        # What is being made lies in a folder that the user does not know.
        parts = [part for part in path.parts if not STAGE.fullmatch(part)]
        raise StorageError(f"cannot write {Path(*parts)}: {reason}") from error
