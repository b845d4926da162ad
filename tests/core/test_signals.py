"""Signals in a notebook and in a program."""

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


@pytest.mark.parametrize(("name", "code"), [("SIGINT", "KeyboardInterrupt"), ("SIGTERM", "Stopped")])
def test_a_signal_ends_a_program_with_an_exception_so_that_it_cleans_up(
    name: str, code: str, tmp_path: Path
) -> None:
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
