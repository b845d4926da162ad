"""Signals in a notebook and in a program."""

from __future__ import annotations

import errno
import logging
import os
import signal
import subprocess
import sys
import threading
from pathlib import Path
from types import ModuleType

import pytest

from palm.core.io import locked
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


# Forked processes, as of multiprocessing and of servers that load a model before they fork.


PROGRAM = """
import os
import palm, torch

torch.set_num_threads(2)
layer, rows = torch.nn.Linear(512, 512), torch.ones(512, 512)
layer(rows).softmax(-1)  # starts the threads
if not (child := os.fork()):
    layer(rows).softmax(-1)
    os._exit(torch.get_num_threads())
print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), torch.get_num_threads())
"""


@pytest.mark.skipif(not hasattr(os, "fork"), reason="a system without fork")
def test_a_forked_process_computes_with_one_thread_and_does_not_hang() -> None:
    words = [sys.executable, "-W", "ignore", "-c", PROGRAM]
    ended = subprocess.run(words, capture_output=True, text=True, check=False, timeout=60)
    assert ended.stdout == "1 2\n", ended.stderr


# A lock keeps others out for as long as its process lives, and keeps nobody out where there are no locks.


DIES = """
import os, sys
from pathlib import Path
from palm.core.io import locked
with locked(Path(sys.argv[1]), "dying"):
    os._exit(0)
"""


def test_a_second_one_waits_and_says_once_for_what(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    order, is_held, may_end = [], threading.Event(), threading.Event()

    def hold() -> None:
        with locked(tmp_path / "lock", "counting"):
            is_held.set()
            may_end.wait()
            order.append("first")

    class Ending(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            may_end.set()  # only when the other has begun to wait

    first = threading.Thread(target=hold)
    first.start()
    is_held.wait()
    handler, logger = Ending(), logging.getLogger("palm")
    logger.addHandler(handler)
    try:
        with caplog.at_level(logging.INFO, "palm"), locked(tmp_path / "lock", "counting"):
            order.append("second")
    finally:
        logger.removeHandler(handler)
        may_end.set()
        first.join()
    assert order == ["first", "second"]
    assert [record.args for record in caplog.records] == [("counting",)]


def test_the_lock_of_a_process_that_died_is_free(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    subprocess.run([sys.executable, "-c", DIES, str(tmp_path / "lock")], check=True)
    with caplog.at_level(logging.INFO, "palm"), locked(tmp_path / "lock", "dying"):
        assert caplog.messages == []


@pytest.mark.filterwarnings("ignore:flock not supported")
@pytest.mark.parametrize("number", [errno.ENOLCK, errno.ENOTSUP, errno.ENOSYS])
def test_without_locks_nobody_waits(number: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    fcntl = pytest.importorskip("fcntl")

    def fails(*_: object) -> None:
        raise OSError(number, "no locks")

    monkeypatch.setattr(fcntl, "flock", fails)
    (tmp_path / "lock").touch()  # of a process that died
    entered = []

    def enter() -> None:
        with locked(tmp_path / "lock", "counting"):
            entered.append(True)

    with locked(tmp_path / "lock", "counting"):
        other = threading.Thread(target=enter)
        other.start()
        other.join()
    assert entered == [True]
