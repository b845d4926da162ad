"""Signals in a notebook: the first asks, the second interrupts."""

from __future__ import annotations

import os
import signal
import sys
from types import ModuleType

import pytest

from palm.core.signals import stop_request


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
