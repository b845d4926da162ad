"""Stopping a run between two steps on a signal."""

from __future__ import annotations

import signal
from collections.abc import Callable
from dataclasses import dataclass

from palm.core.logging import logger
from palm.core.signals import Stopped, StopRequest
from palm.parallel.group import barrier, is_main_process
from palm.train.events import Event, Saved
from palm.train.loop import Step, Training
from palm.train.saving import PeriodicSaver


@dataclass(eq=False)
class StopOnSignal:
    """The last observer of a run: after a signal it saves a checkpoint at the end of the step and stops.

    Args:
        training: the run.
        request: holds the signal that arrived, if any.
        saver: writes the checkpoint; None if there is no folder for one.
        resume_advice: describes what has been saved and how to resume the run.

    Raises:
        Stopped: a signal arrived; the checkpoint is written, and all observers have received its event.
    """

    training: Training
    request: StopRequest
    saver: PeriodicSaver | None
    resume_advice: Callable[[], str]

    def __post_init__(self) -> None:
        self._is_saved = False
        self.training.stop_request = self.request

    def __call__(self, event: Event) -> list[Saved]:
        if isinstance(event, Step) and self.training.is_stopping:
            self._is_saved = True
            if self.saver is not None and (saved := self.saver.save(event.number)):
                return saved  # this observer receives the event last, and stops then
            self._stop()
        elif isinstance(event, Saved) and self._is_saved:
            self._stop()
        return []

    def _stop(self) -> None:
        # The signal may have reached only another rank.
        number = self.request.number or signal.SIGTERM
        if is_main_process():
            name = signal.Signals(number).name
            step = self.training.step
            logger.warning("%s: stopped after global step %d; %s", name, step, self.resume_advice())
        barrier()
        raise Stopped(number)
