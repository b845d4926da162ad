"""Dying at an exact file-system call: what a power failure or a SIGKILL leaves behind.

Nothing here imports PyTorch: a process that has it is copied in ten times the time.
"""

from __future__ import annotations

import os
import shutil
import signal
import sys
from collections.abc import Callable
from itertools import count
from pathlib import Path

import pytest

from palm.core.files import door
from palm.core.files.atomic_dir import (
    foreign_files,
    link_equal_weights,
    new_directory,
    remove_directory,
    remove_stale,
)
from palm.core.files.manifest import verify

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


def fill(path: Path, content: str, overwrite: bool = False) -> None:
    with new_directory(path, overwrite) as part:
        (part / "sub").mkdir()
        (part / "a.txt").write_text(content, encoding="utf-8")
        (part / "sub" / "b.txt").write_text(content, encoding="utf-8")


def sealed(folder: Path, content: bytes) -> Path:
    with new_directory(folder) as part:
        (part / "model.safetensors").write_bytes(content)
        (part / "README.md").write_text("card", encoding="utf-8")
    return folder


def names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


def die_linking(folder: Path) -> None:
    """Die while weights are linked: both folders are whole."""
    sealed(folder / "one", b"weights")
    for number in count(1):
        two = sealed(folder / "two", b"weights")
        died = died_at_call(number, lambda two=two: link_equal_weights(two, [folder / "one"]))
        assert foreign_files(two) == []
        verify(two)
        remove_stale(folder, lambda name: name == "two")
        assert names(folder) == ["one", "two"]
        remove_directory(two)
        if not died:
            break
    assert number > 5


def die_replacing(folder: Path, exchanges: bool) -> None:
    """Die while a folder is replaced: it is the old one or the new one."""
    with pytest.MonkeyPatch.context() as patch:
        if not exchanges:  # as on macOS, and on file systems that cannot exchange names
            patch.setattr(door, "_renameat2", lambda: None)
        _die_replacing(folder, exchanges)


def _die_replacing(folder: Path, exchanges: bool) -> None:
    (folder / "mine.txt").write_text("mine", encoding="utf-8")
    path, seen = folder / "model", set()
    fill(path, "old")
    for number in count(1):
        if not died_at_call(number, lambda: fill(path, "new", overwrite=True)):
            break
        if exchanges:
            assert path.is_dir(), f"absent when killed before call {number}"
        verify(path)
        seen.add(content := (path / "a.txt").read_text(encoding="utf-8"))
        assert (path / "sub" / "b.txt").read_text(encoding="utf-8") == content
        fill(path, "old", overwrite=True)
        assert names(folder) == ["mine.txt", "model"]
    assert number > 20
    assert seen == {"old", "new"}


def die_clearing(folder: Path) -> None:
    """Die while the folder of a dead process is cleared: the next process clears it."""
    path = folder / "model"
    for number in count(1):
        shutil.rmtree(path, ignore_errors=True)
        left = half_filled(path)
        assert len(names(left / "model")) > 2
        died = died_at_call(number, lambda: fill(path, "1"))
        fill(path, "2", overwrite=True)
        assert [name for name in names(folder) if name.endswith(".part")] == []
        if not died:
            break
    assert number > 20


def half_filled(path: Path) -> Path:
    """What a process leaves that dies when it has filled a folder."""

    def die() -> None:
        with new_directory(path) as part:
            for name in ("a.txt", "b.txt", "z.txt"):
                (part / name).write_text("1", encoding="utf-8")
            os.kill(os.getpid(), signal.SIGKILL)

    assert died_at_call(10_000, die)
    (left,) = path.parent.glob(f".{path.name}.*.part")
    return left


def die_discarding(folder: Path) -> None:
    """Die while a folder is removed: it is whole or absent."""
    path, seen = folder / "step_4", set()
    for number in count(1):
        fill(path, "1", overwrite=True)
        if not died_at_call(number, lambda: remove_directory(path)):
            break
        seen.add(path.is_dir())
        if path.is_dir():
            verify(path)
        remove_stale(folder, lambda name: name == "step_4")
        assert names(folder) in ([], ["step_4"])
    assert seen == {True, False}
