"""Dying at an exact file-system call: what a power failure or a SIGKILL leaves behind.

Nothing here imports PyTorch: a process that has it is copied in ten times the time.
"""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Callable
from itertools import count
from pathlib import Path

from palm.core.io import new_directory, remove_directory, remove_stale, verify

CALLS = {"open", "os.rename", "os.remove", "os.mkdir", "os.rmdir", "os.truncate", "os.link", "os.symlink"}
"""Events of `sys.audit`; each is raised just before the call."""


def died_at_call(number: int, work: Callable[[], object]) -> bool:
    """Do `work` in a child process that is killed before its file-system call `number`, from 1.

    Returns:
        True if it was killed; False if it had fewer calls, and came to its end.
    """
    child = os.fork()
    if child == 0:
        left = number

        def count_call(event: str, _: tuple[object, ...]) -> None:
            nonlocal left
            if event in CALLS:
                left -= 1
                if left == 0:
                    os.kill(os.getpid(), signal.SIGKILL)

        code = 1
        try:
            sys.addaudithook(count_call)
            work()
            code = 0
        finally:
            os._exit(code)
    _, status = os.waitpid(child, 0)
    if os.WIFSIGNALED(status):
        return True
    assert os.WEXITSTATUS(status) == 0, "the work failed by itself"
    return False


def fill(path: Path, content: str, overwrite: bool = False) -> None:
    """Write an atomic directory of two files."""
    with new_directory(path, overwrite) as part:
        (part / "sub").mkdir()
        (part / "a.txt").write_text(content, encoding="utf-8")
        (part / "sub" / "b.txt").write_text(content, encoding="utf-8")


def names(folder: Path) -> list[str]:
    """Return the names in a folder."""
    return sorted(path.name for path in folder.iterdir())


def die_replacing(folder: Path) -> None:
    """Die while a folder is replaced: it is the old one or the new one, and never half of one."""
    path, seen = folder / "model", set()
    fill(path, "old")
    for number in count(1):
        if not died_at_call(number, lambda: fill(path, "new", overwrite=True)):
            break
        if not path.exists():  # between two renames; the next process puts the old one back
            remove_stale(folder)
        verify(path)
        seen.add(content := (path / "a.txt").read_text(encoding="utf-8"))
        assert (path / "sub" / "b.txt").read_text(encoding="utf-8") == content
        fill(path, "old", overwrite=True)
        assert names(folder) == ["model"]
    assert number > 15
    assert seen == {"old", "new"}


def die_removing(folder: Path) -> None:
    """Die while a folder is removed: it is whole or absent."""
    path, seen = folder / "step_4", set()
    for number in count(1):
        fill(path, "1", overwrite=True)
        if not died_at_call(number, lambda: remove_directory(path)):
            break
        seen.add(path.is_dir())
        if path.is_dir():
            verify(path)
        remove_stale(folder)
        assert names(folder) in ([], ["step_4"])
    assert seen == {True, False}
