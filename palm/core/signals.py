"""Signals that ask a program to end: at once, or between two steps of its work."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Any

from palm.core.invocation import is_notebook, is_program

NAMES = ("SIGINT", "SIGTERM", "SIGHUP", "SIGUSR1")
"""A terminal, a system that shuts down, a connection that is lost, and Slurm before its time limit."""


class Stopped(SystemExit):
    """A signal ended the program; its exit code is 128 and the signal's number, as a shell counts.

    Args:
        number: of the signal.
    """

    def __init__(self, number: int) -> None:
        super().__init__(128 + number)
        self.number = number

    def __str__(self) -> str:
        return f"ended by {signal.Signals(self.number).name}"


class StopRequest:
    """The request of a signal to end the program.

    Attributes:
        number: that of the signal; None as long as none has come.
    """

    def __init__(self) -> None:
        self.number: int | None = None


@contextmanager
def ending_on_signals() -> Iterator[None]:
    """Raise `Stopped` on a signal, wherever the program is, so that it can clean up.

    Ctrl-C stays a `KeyboardInterrupt`. See `stop_request` for when nothing happens.
    """

    def end(number: int, _: FrameType | None) -> None:
        raise Stopped(number)

    with _handling(end, [name for name in NAMES if name != "SIGINT"]):
        yield


@contextmanager
def stop_request() -> Iterator[StopRequest]:
    """Record the first signal only; a second one ends the program at once.

    In notebooks only SIGINT is recorded, which interrupts a cell; a second one interrupts it at once.
    Nothing is installed in tests, in other threads than the first, and for signals for which somebody
    else has a handler or which are ignored, as SIGHUP is under `nohup`.
    """
    request = StopRequest()

    def note(number: int, _: FrameType | None) -> None:
        if request.number is not None:
            signal.signal(number, signal.default_int_handler if is_notebook() else signal.SIG_DFL)
            os.kill(os.getpid(), number)
        request.number = number
        # Whatever was interrupted may be writing to the same stream; only this is safe here.
        name = signal.Signals(number).name
        os.write(2, f"{name}: the step at hand is finished first; a second one ends at once\n".encode())

    with _handling(note, NAMES):
        yield request


@contextmanager
def _handling(handler: Any, names: Any) -> Iterator[None]:
    before: dict[signal.Signals, Any] = {}
    names = names if is_program() else [name for name in names if name == "SIGINT" and is_notebook()]
    if threading.current_thread() is threading.main_thread():
        for number in [getattr(signal, name) for name in names if hasattr(signal, name)]:
            now = signal.getsignal(number)
            ours = getattr(now, "__module__", None) == __name__
            # One that anybody but Python, or `ending_on_signals`, handles is left alone.
            if ours or now in (signal.SIG_DFL, signal.default_int_handler):
                before[number] = now
    for number in before:
        signal.signal(number, handler)
    try:
        yield
    finally:
        for number, old in before.items():
            signal.signal(number, old)
