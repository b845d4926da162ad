"""The process: its threads, signals and command."""

from __future__ import annotations

import gc
import os
import signal
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from importlib import import_module
from pathlib import Path
from types import FrameType
from typing import Any

SPINS = "2000"
"""Spins of a waiting thread in GNU OpenMP before it sleeps; the default is 300,000, about 10 ms.

On a busy machine, a spinning thread takes CPU time from the one that it waits for. On two cores with 1.3
other processes busy, a step took 0.31 times as long with 2,000 as with the default; on idle cores, 1.02 times
in fp32 and 1.08 times in bf16 (docs/speed.md).
"""

SETTINGS = ("OMP_WAIT_POLICY", "GOMP_SPINCOUNT")


def limit_spinning() -> None:
    """Make waiting threads sleep soon, unless the environment sets this or torch is already loaded."""
    if "torch" not in sys.modules and not any(name in os.environ for name in SETTINGS):
        os.environ["GOMP_SPINCOUNT"] = SPINS


def import_torch() -> None:
    """Import torch, and let the garbage collector pass its objects over, now and later.

    Looking through them would take a third of the time of `palm ls`.
    """
    if "torch" in sys.modules:
        return
    gc.disable()
    try:
        import_module("torch")
    finally:
        gc.freeze()
        gc.enable()


def allow_forks() -> None:
    """Make forked processes compute with one thread.

    A fork copies no threads but the caller's, and OpenMP would wait for the others for ever.
    """

    def use_one_thread() -> None:
        # Missing while torch is being imported.
        if set_threads := getattr(sys.modules.get("torch"), "set_num_threads", None):
            set_threads(1)

    if hasattr(os, "register_at_fork"):
        os.register_at_fork(after_in_child=use_one_thread)


def waiting() -> str:
    """Describe for the log how threads wait."""
    given = [f"{name}={os.environ[name]}" for name in SETTINGS if name in os.environ]
    return ", ".join(given) or "OpenMP's default"


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
    """

    def end(number: int, _: FrameType | None) -> None:
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


START = [sys.executable, str(Path(__file__).resolve().parents[1] / "__main__.py")]
"""Command prefix that runs this palm; `-m` might run a `palm.py` in the working directory instead."""


def is_program() -> bool:
    """Check whether the process runs a script or module, not a notebook, an interactive session or a test."""
    in_test = "pytest" in sys.modules and bool({"PYTEST_VERSION", "PYTEST_CURRENT_TEST"} & os.environ.keys())
    is_script = hasattr(sys.modules["__main__"], "__file__")
    return is_script and not in_test and not is_notebook()


def is_notebook() -> bool:
    """Check whether the process is a Jupyter kernel."""
    return "ipykernel" in sys.modules


def program() -> list[str]:
    """Return the arguments with which Python or `torchrun` run this program: its file, or `-m MODULE`."""
    spec = getattr(sys.modules["__main__"], "__spec__", None)
    if spec is None or spec.name == "__main__":
        return sys.argv[:1]
    return ["-m", spec.name.removesuffix(".__main__")]


def duration(seconds: float) -> str:
    """Format seconds for people: `40 ms`, `2.5 s`, `40 s`, `3 min`, `2 h 5 min`."""
    if seconds < 1:
        return f"{1000 * seconds:.0f} ms"
    if seconds < 100:
        return f"{seconds:.1f} s" if seconds < 10 else f"{seconds:.0f} s"
    hours, minutes = divmod(round(seconds / 60), 60)
    return f"{hours} h {minutes} min" if hours else f"{minutes} min"
