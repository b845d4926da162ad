"""The C library's file-system calls with a fault at an exact place; needs Linux and a C compiler."""

from __future__ import annotations

import ctypes
import functools
import os
import subprocess
import sys
import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

KILL = -1
COUNT = 0


def under_the_shim() -> None:
    """Start this program again with the shim loaded before libc, unless that has been done."""
    if "PALM_FAULTS" in os.environ:
        return
    built = Path(tempfile.gettempdir()) / f"palm_faults_{os.getuid()}.so"
    source = Path(__file__).with_name("shim.c")
    new = built.with_suffix(f".{os.getpid()}")  # several of these programs may run at once
    subprocess.run(["cc", "-shared", "-fPIC", "-O1", "-w", "-o", new, source, "-ldl"], check=True)
    new.replace(built)
    environment = {**os.environ, "LD_PRELOAD": str(built), "PALM_FAULTS": str(built), "OMP_NUM_THREADS": "1"}
    os.execve(sys.executable, [sys.executable, *sys.argv], environment)


@functools.cache
def _shim() -> Any:
    library = ctypes.CDLL(os.environ["PALM_FAULTS"])
    library.faults_arm.argtypes = [ctypes.c_char_p, ctypes.c_long, ctypes.c_int, ctypes.c_int]
    library.faults_calls.restype = ctypes.c_long
    library.faults_last.restype = ctypes.c_char_p
    return library


@dataclass(frozen=True)
class Outcome:
    """What became of a piece of work in a process of its own.

    Args:
        signal: that ended it; 0 where none did.
        said: what `work` returned, or the type and text of what it raised.
        calls: its file-system calls below the folder, as far as it came; 0 where it was killed.
        call: the name of the call at which the fault happened.
    """

    signal: int
    said: str
    calls: int
    call: str


def in_a_child(
    work: Callable[[], object], folder: Path, at: int = 0, fault: int = COUNT, lasting: bool = False
) -> Outcome:
    """Do `work` in a fork of this process, with a fault at one of its calls below a folder.

    Args:
        work: its output is thrown away.
        folder: absolute; calls elsewhere are passed over.
        at: the number of the call, from 1; 0: none.
        fault: KILL, or the error number that the call fails with.
        lasting: every later call fails, too.
    """
    readable, writable = os.pipe()
    child = os.fork()
    if child == 0:
        os.close(readable)
        silent = os.open(os.devnull, os.O_WRONLY)
        os.dup2(silent, 1)
        os.dup2(silent, 2)
        _shim().faults_arm(os.fsencode(folder), at, fault, lasting)
        try:
            said = str(work())
        except BaseException as error:
            said = f"{type(error).__name__}: {error}"
        calls, call = _shim().faults_calls(), _shim().faults_last().decode()
        _shim().faults_arm(None, 0, 0, 0)
        os.write(writable, f"{calls}\n{call}\n{said}".encode())
        os._exit(0)
    os.close(writable)
    with os.fdopen(readable, encoding="utf-8") as pipe:
        told = pipe.read()
    _, status = os.waitpid(child, 0)
    if os.WIFSIGNALED(status):
        return Outcome(os.WTERMSIG(status), "", 0, "")
    calls, call, said = told.split("\n", 2)
    return Outcome(0, said, int(calls), call)
