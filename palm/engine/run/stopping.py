"""Ending a run between two steps because a signal asks for it."""

from __future__ import annotations

import signal

from palm.core.logging import logger
from palm.core.signals import Stopped, StopRequest
from palm.distributed import barrier, is_first
from palm.engine.run.run_directory import RunDirectory
from palm.engine.run.saving import PeriodicSaver
from palm.engine.training.events import Event, Saved
from palm.engine.training.loop import Step, Training


class StopOnSignal:
    """The last observer of a run: a signal ends it after the step that is under way, with a checkpoint.

    Args:
        training: the run.
        request: whether a signal came.
        saver: writes the checkpoint.
        directory: tells how to go on from it.

    Raises:
        Stopped: a signal asked for it; the checkpoint is written, and all observers know of it.
    """

    def __init__(
        self, training: Training, request: StopRequest, saver: PeriodicSaver, directory: RunDirectory
    ) -> None:
        self.training, self.request, self.saver, self.directory = training, request, saver, directory
        self._is_saved = False
        training.stop_request = request

    def __call__(self, event: Event) -> list[Saved]:
        if isinstance(event, Step) and self.training.is_stopping:
            self._is_saved = True
            if saved := self.saver.save(event.number):
                return saved  # this observer is told of it last, and stops then
            self._stop()
        elif isinstance(event, Saved) and self._is_saved:
            self._stop()
        return []

    def _stop(self) -> None:
        # Of several ranks, some may have heard of it from another one alone.
        number = self.request.number or signal.SIGTERM
        if is_first():
            name = signal.Signals(number).name
            step, how = self.training.step, self.directory.how_to_go_on()
            logger.warning("%s: stopped after global step %d; %s", name, step, how)
        barrier()
        raise Stopped(number)
