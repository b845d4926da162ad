"""Signals in a notebook and during an import."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path
from types import ModuleType

import pytest

from palm.core.process import stop_request


@pytest.mark.usefixtures("interruptible")
def test_the_first_interrupt_of_a_cell_asks_and_the_second_is_one(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "ipykernel", ModuleType("ipykernel"))
    before = {name: signal.getsignal(name) for name in (signal.SIGINT, signal.SIGTERM)}
    with stop_request() as request:
        assert signal.getsignal(signal.SIGTERM) is before[signal.SIGTERM]
        os.kill(os.getpid(), signal.SIGINT)
        assert request.number == signal.SIGINT
        with pytest.raises(KeyboardInterrupt):
            os.kill(os.getpid(), signal.SIGINT)
    assert signal.getsignal(signal.SIGINT) is before[signal.SIGINT]


def test_a_test_is_interrupted_as_ever() -> None:
    before = signal.getsignal(signal.SIGINT)
    with stop_request():
        assert signal.getsignal(signal.SIGINT) is before


@pytest.mark.parametrize("name", ["SIGINT", "SIGTERM", "SIGHUP", "SIGUSR1"])
def test_a_signal_ends_a_program_in_an_import_that_suppresses_exceptions(name: str, tmp_path: Path) -> None:
    number = getattr(signal, name)
    suppressing = f"""
import contextlib, os, time

with contextlib.suppress(BaseException):
    os.kill(os.getpid(), {number:d})
    time.sleep(1)
"""
    program = """
import signal
from palm.core.process import NAMES, ending_on_signals

for name in NAMES:  # whoever started the tests may ignore some
    signal.signal(getattr(signal, name), signal.default_int_handler if name == "SIGINT" else signal.SIG_DFL)
with ending_on_signals():
    import suppressing
print("continued")
"""
    (tmp_path / "suppressing.py").write_text(suppressing, encoding="utf-8")
    (tmp_path / "program.py").write_text(program, encoding="utf-8")
    words = [sys.executable, str(tmp_path / "program.py")]
    ended = subprocess.run(words, capture_output=True, text=True, check=False, timeout=60)
    assert (ended.returncode, ended.stdout, ended.stderr) == (-number, "", f"ended by {name}\n")


@pytest.mark.parametrize(("name", "code"), [("SIGINT", "KeyboardInterrupt"), ("SIGTERM", "Stopped")])
def test_a_signal_outside_an_import_raises(name: str, code: str, tmp_path: Path) -> None:
    program = f"""
import os, signal, time
from palm.core.process import ending_on_signals

signal.signal(signal.SIGINT, signal.default_int_handler)
signal.signal(signal.SIGTERM, signal.SIG_DFL)
try:
    with ending_on_signals():
        os.kill(os.getpid(), signal.{name})
        time.sleep(1)
except BaseException as error:
    print(type(error).__name__)
"""
    (tmp_path / "program.py").write_text(program, encoding="utf-8")
    words = [sys.executable, str(tmp_path / "program.py")]
    ended = subprocess.run(words, capture_output=True, text=True, check=False, timeout=60)
    assert ended.stdout == f"{code}\n"
