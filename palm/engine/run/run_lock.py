"""One run at a time in a folder: a lock that ends with its process, and a note about its holder."""

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

    The system takes the lock from a process that dies, so that none is ever left behind. On a file
    system that has no locks there is a warning, and nothing is locked.

    Raises:
        StorageError: another run is there, and names it; or the folder cannot be written.
    """
    make_folder(folder)
    remedy = "wait for its end, or give another save_path"

    def taken() -> str:
        return f"save_path: {folder} belongs to another run, {_holder(folder)}; {remedy}"

    # The lock's file stays: whoever has opened it just now would lock a file that is gone.
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
        return "which has just begun"
