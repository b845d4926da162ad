"""Freed memory stays with the process, which changes no result."""

from __future__ import annotations

import platform
import subprocess
import sys

import pytest

from palm.core.device import keep_freed_memory

FAULTS = """
import ctypes, resource, sys
from palm.core.device import keep_freed_memory
libc = ctypes.CDLL(None)
libc.malloc.restype = ctypes.c_void_p
libc.memset.argtypes, libc.free.argtypes = [ctypes.c_void_p, ctypes.c_int, ctypes.c_size_t], [ctypes.c_void_p]
def touch():
    memory = libc.malloc(40_000_000)
    libc.memset(memory, 1, 40_000_000)
    libc.free(memory)
if sys.argv[1] == "keep":
    assert keep_freed_memory()
    assert keep_freed_memory()
touch()
before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
for _ in range(5):
    touch()
print(resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before)
"""


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="a setting of glibc's")
def test_memory_that_was_freed_does_not_come_from_the_system_again() -> None:
    faults = {
        how: int(subprocess.check_output([sys.executable, "-c", FAULTS, how], text=True))
        for how in ("keep", "leave")
    }

    assert faults["keep"] < faults["leave"] / 2


@pytest.mark.skipif(sys.platform == "linux", reason="there it can be done")
def test_elsewhere_nothing_is_done() -> None:
    assert keep_freed_memory() is False
