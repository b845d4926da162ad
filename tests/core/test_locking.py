"""A lock keeps others out for as long as its process lives, and keeps nobody out where there are no locks."""

from __future__ import annotations

import errno
import logging
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from palm.core.io import locked

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
