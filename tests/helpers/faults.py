"""Dying at an exact file-system call: what a power failure or a SIGKILL leaves behind."""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Callable

CALLS = {"open", "os.rename", "os.remove", "os.mkdir", "os.rmdir", "os.truncate", "os.link", "os.symlink"}
"""Events of `sys.audit`; each is raised just before the call."""


def died_at_call(number: int, work: Callable[[], object]) -> bool:
    """Do `work` in a child process that is killed before its file-system call `number`, from 1.

    Returns:
        Whether it was killed; False where it had fewer calls, and came to its end.
    """
    child = os.fork()
    if child == 0:
        left = number

        def count(event: str, _: tuple[object, ...]) -> None:
            nonlocal left
            if event in CALLS:
                left -= 1
                if left == 0:
                    os.kill(os.getpid(), signal.SIGKILL)

        code = 1
        try:
            sys.addaudithook(count)
            work()
            code = 0
        finally:
            os._exit(code)
    _, status = os.waitpid(child, 0)
    if os.WIFSIGNALED(status):
        return True
    assert os.WEXITSTATUS(status) == 0, "the work failed by itself"
    return False
