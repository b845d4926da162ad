"""Training in stages: consecutive runs in one folder."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import nullcontext

from palm.controller.document import Document
from palm.controller.stage_planning import StagePlan
from palm.core.io import write_text
from palm.core.logging import logger
from palm.parallel.failures import report_missing_ranks
from palm.parallel.group import barrier, broadcast, is_main_process, launch_id, lost_a_process
from palm.train.callbacks import Callback
from palm.train.checkpoint import save_checkpoint
from palm.train.events import Completed, Ended, Evaluated, Event, Started
from palm.train.folder import RunFolder
from palm.train.loop import Training
from palm.train.model_paths import CONFIGURATION
from palm.train.result import TrainingResult
from palm.train.staged_directory import StagedDirectory

Train = Callable[[Document, Sequence[Callback]], TrainingResult]
"""Trains the run of a configuration with callbacks."""


class _StageCallback:
    """Callback that keeps the stage's training, and updates the history of all stages."""

    training: Training

    def __init__(self, directory: StagedDirectory, stage: str) -> None:
        self.directory = directory
        self.stage = stage

    def __call__(self, event: Event) -> None:
        if isinstance(event, Started):
            self.training = event.training
        if isinstance(event, Completed):  # before the run is recorded as finished
            save_checkpoint(self.training, self.directory.weights(self.stage), resumable=False)
        if isinstance(event, (Started, Evaluated, Ended)) and is_main_process():
            self.directory.write_history()


def train_stages(
    run: RunFolder,
    stages: Sequence[StagePlan],
    configuration: str,
    train: Train,
    callbacks: Sequence[Callback],
) -> TrainingResult:
    """Train all stages that are not done, one after the other.

    Args:
        run: the folder of the whole run.
        stages: planned and checked.
        configuration: the resolved configuration of the whole run, as YAML.
        train: trains a stage.
        callbacks: called with every event of every stage, after those of the setting `callbacks`.
    """
    directory = StagedDirectory(run, {stage.label: stage.identity() for stage in stages})
    restarted = lost_a_process()
    # If several stages train a target, its model is from the last of them.
    last = {task: stage.label for stage in stages for task in stage.tasks}
    with run.locked() if is_main_process() else nullcontext():
        broadcast(lambda: directory.open(launch_id(), restarted))
        if is_main_process():
            write_text(directory.path / CONFIGURATION, configuration)
        for number, stage in enumerate(stages, start=1):
            is_done = broadcast(lambda label=stage.label: directory.is_done(label))  # type: ignore[misc]
            logger.info("stage %d of %d, %s%s", number, len(stages), stage.label, ": done before" * is_done)
            if not is_done and not _train_stage(directory, stage, train, callbacks):
                break
            if is_main_process():
                later = {task for each in stages[number:] for task in each.targets}
                directory.publish(stage.label, [task for task in stage.targets if task not in later])
            with report_missing_ranks(f"after stage {stage.label}"):
                barrier()
        return broadcast(lambda: directory.result(last))


def _train_stage(
    directory: StagedDirectory, stage: StagePlan, train: Train, callbacks: Sequence[Callback]
) -> bool:
    """Train a stage; return True if it was completed, not interrupted."""
    state = {"resume": "auto", "overwrite": False}
    settings = {**stage.settings, "global": {**stage.settings["global"], **state}}
    own = _StageCallback(directory, stage.label)
    return not train(settings, [*callbacks, own]).is_interrupted
