"""Train a run in its folder."""

from __future__ import annotations

import json
import signal
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import nullcontext, suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from palm.config import yaml_text
from palm.config.run import RunConfig
from palm.core.cache import explain_limits
from palm.core.device import fixed_order, tf32
from palm.core.io import make_folder, write_text
from palm.core.logging import Progress, aligned, collected_warnings, logger
from palm.core.process import Stopped, StopRequest, is_notebook, stop_request
from palm.parallel.group import (
    barrier,
    broadcast,
    is_main_process,
    launch_id,
    lost_a_process,
    report_missing_ranks,
)
from palm.train.callbacks import Callback, Completed, Ended, Event, HistoryWriter, Started, Warned, notify
from palm.train.checkpoint import compared, load_checkpoint
from palm.train.display import Heading, Meter, palm_heading, progress_callbacks
from palm.train.evaluation import EarlyStopping, Evaluator
from palm.train.folder import RunFolder, RunStart
from palm.train.loggers import loggers_of
from palm.train.loop import Step, Training
from palm.train.model_paths import BAD_ROWS, CONFIGURATION
from palm.train.result import TrainingResult, result_of
from palm.train.saving import ModelSaver, PeriodicSaver, checkpoint_saver
from palm.train.task import TaskState


@dataclass(frozen=True, kw_only=True)
class CallbackSettings:
    """Settings for showing, recording, evaluating and saving a run while it trains.

    Args:
        every: log a step every so many global steps; 0 or less: never.
        progress: the kind of progress display.
        heading: makes the beginning of a step's log line.
        with_epochs: log a line at the end of every epoch of the main task.
        folder: the folder of the run; None: nothing is written.
        configuration: the resolved settings, stored by loggers and with models.
        loggers: names of loggers.
        callbacks: the user's callbacks.
        evaluator: evaluates the tasks; None for no evaluation.
        patience: as for `EarlyStopping`; 0 or less: never stop early.
        stop_by: 'task' to judge each target by its own scores, 'all' to stop all targets together.
        targets_every: save targets when they finish, and at intervals (see `ModelSaver`); None: neither.
        keep: number of intermediate models that are kept; 0 or less: all.
        checkpoints: saves checkpoints at intervals, and when a signal stops the run.
        stop_request: holds a signal that arrived, if any.
        resume_advice: describes what has been saved and how to resume the run.
        resumed_from: the checkpoint that the run resumes from.
        warned: a list of warnings that already collects; None: collect them from now on.
    """

    every: int = 5
    progress: Progress = "auto"
    heading: Heading = palm_heading
    with_epochs: bool = True
    folder: Path | None = None
    configuration: Mapping[str, Any] = field(default_factory=dict)
    loggers: Sequence[str] = ()
    callbacks: Sequence[Callback] = ()
    evaluator: Evaluator | None = None
    patience: int = -1
    stop_by: str = "task"
    targets_every: int | None = None
    keep: int = -1
    checkpoints: PeriodicSaver | None = None
    stop_request: StopRequest | None = None
    resume_advice: Callable[[], str] = str
    resumed_from: Path | None = None
    warned: list[str] | None = None


def standard_callbacks(training: Training, given: CallbackSettings) -> list[Callback]:
    """Return the callbacks of a run in their order: those that only read, then those that act.

    A step is thus recorded before its consequences, and a checkpoint contains the evaluation of its step.
    Only rank 0 has a history, a display and loggers.
    """
    callbacks: list[Callback] = []
    if is_main_process():
        callbacks += progress_callbacks(given.progress, given.heading, given.with_epochs)
        if given.loggers:
            callbacks += loggers_of(given.loggers, given.folder)
    callbacks += given.callbacks
    if given.evaluator is not None:
        callbacks.append(given.evaluator)
        if given.patience > 0:
            callbacks.append(EarlyStopping(given.evaluator, given.patience, given.stop_by == "all"))
    if given.folder is not None:
        every = given.targets_every
        saved = (training, given.folder, given.configuration)
        callbacks.append(ModelSaver(*saved, last=every is not None, every=every or -1, keep=given.keep))
    if given.checkpoints is not None:
        callbacks.append(given.checkpoints)
    return callbacks


def _events(training: Training, given: CallbackSettings) -> Iterator[Event]:
    """Train, and yield all events of the run except `Ended`."""
    yield Started(training, given.folder, given.configuration, given.resumed_from)
    yield from training.steps()
    yield Completed(training.step)


@explain_limits()
def run_training(training: Training, given: CallbackSettings) -> TrainingResult:
    """Train to the end, and call all callbacks with every event.

    Raises:
        Stopped: a signal arrived; the step was completed, and a checkpoint was saved.
    """
    history = HistoryWriter(training, given.folder if is_main_process() else None)
    # The meter is first: it computes the values that the others show.
    meter = Meter(training, given.every, history.seconds)
    callbacks: list[Callback] = [meter, history, *standard_callbacks(training, given)]
    training.stop_request = given.stop_request
    settings = training.config.settings
    with collected_warnings() as collected, tf32(settings.tf32), fixed_order(settings.deterministic):
        warned = collected if given.warned is None else given.warned
        try:
            write_bad_rows(given.folder, training.tasks)
            for event in _events(training, given):
                notify(event, callbacks)
                while warned:  # callbacks may warn too
                    training.warnings.append(warned.pop(0))
                    notify(Warned(training.step, training.warnings[-1]), callbacks)
                if isinstance(event, Step) and training.is_stopping:
                    _stop(training, given, callbacks)
        except BaseException as error:
            reason = "interrupted" if isinstance(error, KeyboardInterrupt | SystemExit) else "stopped"
            with suppress(Exception):  # the original error is the one to report
                notify(Ended(training.step, reason), callbacks)
            # A notebook cell that was interrupted returns the partial result.
            if not (isinstance(error, Stopped) and is_notebook()):
                raise
        else:
            notify(Ended(training.step, "finished"), callbacks)
    steps = {task.name: task.step for task in training.tasks}
    planned = {task.name: task.expected_steps for task in training.tasks}
    result = result_of(history.events, steps, planned, history.seconds())
    return replace(result, losses={**result.losses, **meter.means()})


def _stop(training: Training, given: CallbackSettings, callbacks: Sequence[Callback]) -> None:
    """Save a checkpoint, and stop because of a signal."""
    for saved in [] if given.checkpoints is None else given.checkpoints.save(training.step):
        notify(saved, callbacks)
    # The signal may have reached only another rank.
    number = (given.stop_request and given.stop_request.number) or signal.SIGTERM
    if is_main_process():
        name = signal.Signals(number).name
        logger.warning("%s: stopped after global step %d; %s", name, training.step, given.resume_advice())
    barrier()
    raise Stopped(number)


def write_bad_rows(folder: Path | None, tasks: Sequence[TaskState]) -> None:
    """Write `bad_rows.jsonl`, one line for each of a file's first bad rows, and log its path.

    Nothing is written if there are no such rows, without a folder, or on ranks other than 0.

    Raises:
        StorageError: the folder cannot be written.
    """
    if folder is None or not is_main_process():
        return
    lines = []
    total = 0
    for task in tasks:
        for records, count in (task.stream.rows.bad, task.bad_dev_rows):
            lines += [json.dumps({"task": task.name, **record}, ensure_ascii=False) for record in records]
            total += count
    if total:
        make_folder(folder)
        write_text(folder / BAD_ROWS, "\n".join(lines) + "\n")
        listed = "" if len(lines) == total else f" the first {len(lines)} of"
        logger.warning(
            "%s lists%s the rows that were skipped or repaired: %d", folder / BAD_ROWS, listed, total
        )


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
    # A collective of all ranks, so it comes before work that only rank 0 does.
    restarted = lost_a_process()
    lock = folder.locked() if is_main_process() else nullcontext()
    with lock, collected_warnings() as warned:
        begin = broadcast(lambda: folder.open(launch_id(), restarted))
        training = start(begin.checkpoint is not None)
        identified = (begin, compared(training), training.total_steps)
        if (result := broadcast(lambda: folder.finished(*identified))) is not None:
            return result
        evaluator = _restored(training, begin)
        if is_main_process():
            folder.begin(*identified, launch_id())
            write_configuration(run, folder.path)
            for path, text in run.files.items():
                write_text(path, text)
        given = _callback_settings(run, folder, training, begin)
        given = replace(given, callbacks=callbacks, evaluator=evaluator, warned=warned)
        # Only during training: before, there is nothing to save in a checkpoint.
        with folder.explaining(), stop_request() as request:
            result = run_training(training, replace(given, stop_request=request))
            if is_main_process() and not result.is_interrupted:
                folder.finish()
        for line in aligned(result.models(folder.path)):
            logger.info("%s", line)
        with report_missing_ranks("at the end of training"):
            barrier()  # other ranks may now read what rank 0 has saved
        return result


def _restored(training: Training, begin: RunStart) -> Evaluator | None:
    """Load the checkpoint, if any, and return the evaluator, if there is dev data."""
    settings = training.config.settings
    evaluates = (settings.eval_every_n_steps, settings.eval_every_epoch, settings.best_by)
    evaluator = Evaluator.of(training, *evaluates)  # before loading: its state is in the checkpoint
    if begin.checkpoint is not None:
        load_checkpoint(training, begin.checkpoint)
        logger.info("resumed from %s at global step %d", begin.checkpoint, training.step)
    return evaluator


def _callback_settings(
    run: RunConfig, folder: RunFolder, training: Training, begin: RunStart
) -> CallbackSettings:
    settings = run.settings
    every = settings.save_every_n_steps
    return CallbackSettings(
        every=settings.print_every_n_steps,
        progress=settings.progress,
        folder=folder.path,
        configuration=run.to_dict(),
        loggers=settings.loggers or (),
        patience=settings.early_stopping_patience,
        stop_by=settings.early_stopping_by,
        targets_every=settings.save_infermodel_every_n_steps,
        keep=settings.keep_last_n,
        checkpoints=checkpoint_saver(training, folder.path, every, settings.keep_last_n, begin.run_id),
        resume_advice=folder.resume_advice,
        resumed_from=begin.checkpoint,
    )
