"""A lock that admits one run at a time to a folder, and a note about the process that holds it."""

from __future__ import annotations

import os
import socket
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from datetime import datetime
from pathlib import Path

from palm.core.errors import StorageError
from palm.core.files.door import make_folder, within
from palm.core.files.fs import remove_written, write_json
from palm.core.files.locking import locked
from palm.core.files.untrusted import read_json
from palm.core.invocation import command_of_program

LOCK = ".run.lock"
HOLDER = ".run.lock.json"


@contextmanager
def only_run_in(folder: Path) -> Iterator[None]:
    """Lock `folder` against other runs; fail at once if it is locked.

    The operating system releases the lock of a process that dies, so no stale lock remains. On a file
    system without locks a warning is logged, and nothing is locked.

    Raises:
        StorageError: another run (named in the message) holds the lock, or the folder cannot be written.
    """
    make_folder(folder)
    remedy = "wait until it ends, or give another save_path"

    def taken() -> str:
        return f"save_path: {folder} is in use by another run, {_holder(folder)}; {remedy}"

    # The lock file is not removed: a process that has just opened it would lock a deleted file.
    with locked(folder / LOCK, taken=taken), within(folder):
        since = datetime.now().astimezone().isoformat(" ", "seconds")
        holder = {"process": os.getpid(), "host": socket.gethostname(), "since": since}
        try:
            write_json(folder / HOLDER, {**holder, "command": command_of_program()})
            yield
        finally:
            with suppress(OSError):
                remove_written(folder / HOLDER)


def _holder(folder: Path) -> str:
    """Describe the lock's holder, if its note can be read."""
    try:
        who = read_json(folder / HOLDER)
        command = f" ({who['command']})" if who["command"] else ""
        return f"process {who['process']} on {who['host']} since {who['since']}{command}"
    except (StorageError, KeyError, TypeError):
        return "which has just started"
