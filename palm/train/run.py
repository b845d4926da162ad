"""Train a run in its folder."""

from __future__ import annotations

import shlex
import signal
from collections.abc import Callable, Iterator, Sequence
from contextlib import nullcontext, suppress
from dataclasses import replace
from pathlib import Path

from palm.config import yaml_text
from palm.config.run import RunConfig
from palm.core.cache import explain_limits
from palm.core.device import fixed_order
from palm.core.group import (
    barrier,
    broadcast,
    is_main_process,
    report_missing_ranks,
)
from palm.core.io import write_text
from palm.core.logging import collected_warnings, logger, shown_url
from palm.core.process import Stopped, is_notebook, stop_request
from palm.train.callbacks import (
    Callback,
    Completed,
    Ended,
    Event,
    HistoryWriter,
    Started,
    Stopping,
    Warned,
    notify,
)
from palm.train.checkpoint import compared, load_checkpoint
from palm.train.display import Meter, progress_callbacks
from palm.train.evaluation import EarlyStopping, Evaluator
from palm.train.folder import RunFolder
from palm.train.loggers import loggers_of
from palm.train.loop import Training
from palm.train.model_paths import CONFIGURATION
from palm.train.result import TrainingResult, result_of
from palm.train.saving import ModelSaver, checkpoint_saver


def standard_callbacks(
    training: Training, folder: RunFolder, run_id: str, given: Sequence[Callback], evaluator: Evaluator | None
) -> Iterator[Callback]:
    """Yield the callbacks of a run in their order: those that only read, then those that act.

    A step is thus recorded before its consequences, and a checkpoint contains the evaluation of its step.
    Only rank 0 has a display and loggers.
    """
    settings = training.config.settings
    if is_main_process():
        yield from progress_callbacks(settings.progress)
        if settings.loggers:
            yield from loggers_of(settings.loggers, folder.path)
    yield from given
    if evaluator is not None:
        yield evaluator
        if (patience := settings.early_stopping_patience) > 0:
            yield EarlyStopping(evaluator, patience)
    yield ModelSaver(training, folder.path, settings.save_infermodel_every_n_steps, settings.keep_last_n)
    yield checkpoint_saver(training, folder.path, run_id)


def _events(training: Training, folder: Path | None) -> Iterator[Event]:
    """Train, and yield all events of the run except `Ended`."""
    yield Started(training, folder)
    for step in training.steps():
        yield step
        if training.is_stopping:
            yield Stopping(training.step)
    yield Completed(training.step)


@explain_limits()
def run_training(
    training: Training,
    folder: Path | None,
    callbacks: Sequence[Callback],
    *,
    every: int,
    warned: list[str],
    resume_advice: Callable[[], str],
) -> TrainingResult:
    """Train to the end, and call all callbacks with every event.

    Args:
        training: the run.
        folder: its folder; None: nothing is written.
        callbacks: called after those that measure and record.
        every: global steps between logged steps; 0 or less: never.
        warned: collects palm's warnings.
        resume_advice: describes what has been saved and how to resume the run.

    Raises:
        Stopped: a signal arrived; the step was completed, and a checkpoint was saved.
    """
    history = HistoryWriter(training, folder if is_main_process() else None)
    # The meter is first: it computes the values that the others show.
    meter = Meter(training, every, history.seconds)
    callbacks = [meter, history, *callbacks]
    with fixed_order(training.config.settings.deterministic):
        try:
            for event in _events(training, folder):
                notify(event, callbacks)
                while warned:  # callbacks may warn too
                    training.warnings.append(warned.pop(0))
                    notify(Warned(training.step, training.warnings[-1]), callbacks)
                if isinstance(event, Stopping):
                    _stop(training, resume_advice)
        except BaseException as error:
            reason = "interrupted" if isinstance(error, KeyboardInterrupt | SystemExit) else "stopped"
            with suppress(Exception):  # the original error is the one to report
                ended = Ended(training.step, reason, error=shown_url(error) or type(error).__name__)
                notify(ended, callbacks)
            # A notebook cell that was interrupted returns the partial result.
            if not (isinstance(error, Stopped) and is_notebook()):
                raise
        else:
            notify(Ended(training.step, "finished"), callbacks)
    steps = {task.name: task.step for task in training.tasks}
    planned = {task.name: task.expected_steps for task in training.tasks}
    result = result_of(history.events, steps, planned, history.seconds())
    return replace(result, losses={**result.losses, **meter.means()})


def _stop(training: Training, resume_advice: Callable[[], str]) -> None:
    # The signal may have reached only another rank.
    number = (training.stop_request and training.stop_request.number) or signal.SIGTERM
    if is_main_process():
        name = signal.Signals(number).name
        logger.warning("%s: stopped after global step %d; %s", name, training.step, resume_advice())
    barrier()
    raise Stopped(number)


def write_configuration(run: RunConfig, folder: Path) -> None:
    """Write `resolved_config.yaml`, which reproduces the run, with the places of its values."""
    document = run.to_dict()
    write_text(folder / CONFIGURATION, yaml_text(document, run.origins_of(document)))


Start = Callable[[bool], Training]
"""Makes a run before its first step; True if its weights come from a checkpoint."""


def train(run: RunConfig, folder: RunFolder, start: Start, callbacks: Sequence[Callback]) -> TrainingResult:
    """Train in a folder, or return the result of the run that is finished there already.

    Args:
        run: the run, with the files that belong into its folder.
        folder: the folder.
        start: makes the run.
        callbacks: called with every event of the run, in order.
    """
    lock = folder.locked() if is_main_process() else nullcontext()
    with lock, collected_warnings() as warned:
        begin = broadcast(folder.open)
        training = start(begin.checkpoint is not None)
        identified = (begin, compared(training), training.total_steps)
        if (result := broadcast(lambda: folder.finished(*identified))) is not None:
            return result
        evaluator = Evaluator.of(training)  # before loading: its state is in the checkpoint
        if begin.checkpoint is not None:
            load_checkpoint(training, begin.checkpoint)
            logger.info("resumed from %s at global step %d", begin.checkpoint, training.step)
        if is_main_process():
            folder.begin(*identified)
            write_configuration(run, folder.path)
            for path, text in run.files.items():
                write_text(path, text)
        # Only during training: before, there is nothing to save in a checkpoint.
        with folder.explaining(), stop_request() as training.stop_request:
            result = run_training(
                training,
                folder.path,
                list(standard_callbacks(training, folder, begin.run_id, callbacks, evaluator)),
                every=run.settings.print_every_n_steps,
                warned=warned,
                resume_advice=folder.resume_advice,
            )
            if is_main_process() and not result.is_interrupted:
                folder.finish()
        for line in (*str(result).splitlines(), f"next: palm report {shlex.quote(str(folder.path))}"):
            logger.info("%s", line)
        with report_missing_ranks("at the end of training"):
            barrier()  # other ranks may now read what rank 0 has saved
        return result
