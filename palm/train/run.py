"""Train a run in its folder: a new one, one that continues, or one that is finished already."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import nullcontext
from dataclasses import replace

from palm.config import yaml_text
from palm.config.run import RunConfig
from palm.core.io import write_text
from palm.core.logging import collected_warnings, logger
from palm.core.shown import aligned
from palm.core.signals import stop_request
from palm.parallel.failures import report_missing_ranks
from palm.parallel.group import barrier, broadcast, is_main_process, launch_id, lost_a_process
from palm.train.callbacks import Callback
from palm.train.checkpoint import load_checkpoint
from palm.train.comparison import compared
from palm.train.evaluation import Evaluator
from palm.train.fit import CallbackSettings, run_training
from palm.train.folder import RunFolder, RunStart
from palm.train.loop import Training
from palm.train.model_paths import CONFIGURATION
from palm.train.result import TrainingResult
from palm.train.saving import checkpoint_saver

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
            document = run.to_dict()
            write_text(folder.path / CONFIGURATION, yaml_text(document, run.origins_of(document)))
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
