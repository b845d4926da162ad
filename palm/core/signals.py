"""Signals that end a program: at once, or after the current step."""

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
"""Sent by a terminal, a system that shuts down, a lost connection, and Slurm before its time limit."""


class Stopped(SystemExit):
    """Exit because of a signal, with the exit code 128 + its number, as in a shell.

    Args:
        number: the signal's number.
    """

    def __init__(self, number: int) -> None:
        super().__init__(128 + number)
        self.number = number

    def __str__(self) -> str:
        return f"ended by {signal.Signals(self.number).name}"


class StopRequest:
    """A request to stop, made by a signal.

    Attributes:
        number: the signal's number; None until one arrives.
    """

    def __init__(self) -> None:
        self.number: int | None = None


@contextmanager
def ending_on_signals() -> Iterator[None]:
    """Raise `Stopped` at once on a signal, so that the program can clean up.

    Ctrl-C still raises `KeyboardInterrupt`. See `stop_request` for cases in which no handler is installed.
    During an import the process ends without cleaning up: NumPy and PyTorch suppress exceptions there, and
    the program would continue with half a module.
    """

    def end(number: int, frame: FrameType | None) -> None:
        if _is_importing(frame):
            os.write(2, f"{Stopped(number)}\n".encode())
            _end_process(number)
        if number == signal.SIGINT:
            raise KeyboardInterrupt
        raise Stopped(number)

    with _handling(end, NAMES):
        yield


@contextmanager
def stop_request() -> Iterator[StopRequest]:
    """Record the first signal; a second one ends the program at once.

    In notebooks only SIGINT is recorded, which interrupts a cell; a second one interrupts it at once.
    No handler is installed in tests, outside of the main thread, and for signals that have a handler already
    or are ignored, such as SIGHUP under `nohup`.
    """
    request = StopRequest()

    def note(number: int, _: FrameType | None) -> None:
        if request.number is not None:
            _end_process(number)
        request.number = number
        # The interrupted code may be writing to the same stream; only os.write is safe here.
        name = signal.Signals(number).name
        os.write(2, f"{name}: stopping after the current step; send it again to stop at once\n".encode())

    with _handling(note, NAMES):
        yield request


def _end_process(number: int) -> None:
    """End the process by a signal; in a notebook, interrupt the cell."""
    signal.signal(number, signal.default_int_handler if is_notebook() else signal.SIG_DFL)
    os.kill(os.getpid(), number)


def _is_importing(frame: FrameType | None) -> bool:
    while frame is not None and frame.f_code.co_filename != "<frozen importlib._bootstrap>":
        frame = frame.f_back
    return frame is not None


@contextmanager
def _handling(handler: Any, names: Any) -> Iterator[None]:
    before: dict[signal.Signals, Any] = {}
    names = names if is_program() else [name for name in names if name == "SIGINT" and is_notebook()]
    if threading.current_thread() is threading.main_thread():
        for number in [getattr(signal, name) for name in names if hasattr(signal, name)]:
            now = signal.getsignal(number)
            ours = getattr(now, "__module__", None) == __name__
            # Leave handlers alone that are neither Python's defaults nor `ending_on_signals`.
            if ours or now in (signal.SIG_DFL, signal.default_int_handler):
                before[number] = now
    for number in before:
        signal.signal(number, handler)
    try:
        yield
    finally:
        for number, old in before.items():
            signal.signal(number, old)
