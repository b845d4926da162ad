"""Following a run step by step, until it ends or a signal asks it to."""

from __future__ import annotations

import signal
from collections.abc import Sequence

from palm.core.logging import logger
from palm.core.signals import Stopped, stop_request
from palm.distributed import barrier, is_first
from palm.engine.loop import Observer, Training
from palm.engine.run_directory import RunDirectory
from palm.engine.saving import CheckpointSaver


def follow(
    training: Training, observers: Sequence[Observer], saver: CheckpointSaver, directory: RunDirectory
) -> None:
    """Train to the end; a signal ends it after the step that is under way, with a checkpoint.

    Args:
        training: the run.
        observers: called after every step, in order.
        saver: writes the checkpoint.
        directory: tells how to go on from it.

    Raises:
        Stopped: a signal asked for it; the checkpoint is written.
    """
    with stop_request() as request:
        training.stop_request = request
        for step in training.steps():
            for observe in observers:
                observe(step)
            if training.is_stopping:
                # Of several ranks, some may have heard of it from another one alone.
                number = request.number or signal.SIGTERM
                saver.save()
                if is_first():
                    name = signal.Signals(number).name
                    logger.warning(
                        "%s: stopped after global step %d; %s", name, step.number, directory.how_to_go_on()
                    )
                barrier()
                raise Stopped(number)
