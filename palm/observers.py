"""What watches a run: the step log, saved models of targets, checkpoints. None of them changes training."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from palm.checkpoint import save_checkpoint
from palm.evaluation import model_of
from palm.logging import logger
from palm.loop import Step, Training
from palm.storage import keep_last
from palm.task import Task

Observer = Callable[[Step], object]
ON_THE_WAY = "infer_model.step"


class Pace:
    """How fast steps go by."""

    def __init__(self) -> None:
        self._steps, self._since = 0, time.perf_counter()

    def count(self) -> None:
        """One more step."""
        self._steps += 1

    def speed(self) -> float:
        """Steps per second since the last call, or since the beginning."""
        now = time.perf_counter()
        speed = self._steps / max(now - self._since, 1e-9)
        self._steps, self._since = 0, now
        return speed


class StepLog:
    """PALM's line every `every` global steps: task, its step and epoch, loss, speed since the last line.

    Args:
        every: 0 or less: never.
        heading: what a line begins with; PaddlePALM 2.x words it otherwise than 0.2.1.
    """

    def __init__(self, every: int, heading: Callable[[Step], str] | None = None) -> None:
        self.every = every
        self.heading = heading or (lambda step: f"Global step: {step.number}. Task: {step.task.name}, ")
        self._pace = Pace()

    def __call__(self, step: Step) -> None:
        self._pace.count()
        if self.every <= 0 or step.number % self.every:
            return
        logger.info(
            "%sstep %d/%d (epoch %d), loss: %.3f, speed: %.2f steps/s",
            self.heading(step),
            (step.task.step - 1) % step.task.steps_per_epoch + 1,
            step.task.steps_per_epoch,
            step.task.epoch,
            step.loss.item(),
            self._pace.speed(),
        )


class EpochLog:
    """A line at the end of every epoch of the main task, the first target: the steps of all tasks so far."""

    def __init__(self, training: Training) -> None:
        self.training = training
        self.main = next(task for task in training.tasks if task.is_target)

    def __call__(self, step: Step) -> None:
        if step.task is self.main and self.main.step % self.main.steps_per_epoch == 0:
            logger.info(
                "%s: end of epoch %d; %s", self.main.name, self.main.epoch, counts(self.training.tasks)
            )


def counts(tasks: Sequence[Task]) -> str:
    """The realised steps of tasks beside the planned ones: `steps so far / planned: slot 70/140, …`."""
    told = ", ".join(f"{task.name} {task.step}/{task.expected_steps}" for task in tasks)
    return f"steps so far / planned: {told}"


def log_counts(training: Training) -> None:
    """A line per task at the end of a run: its realised steps, planned steps and share of all steps."""
    for task in training.tasks:
        share = 100 * task.step / max(training.step, 1)
        planned = 100 * task.expected_steps / max(training.total_steps, 1)
        logger.info(
            "%s: %d steps, %d planned (%.1f %% of all, %.1f %% planned)",
            *(task.name, task.step, task.expected_steps, share, planned),
        )


class TargetSaver:
    """Saves a target's inference model at the moment it finishes, and on the way if asked.

    Args:
        training: whose weights (averaged ones, where it keeps averages) are saved.
        save_path: a model goes to `<save_path>/<task>/infer_model`.
        every: also to `infer_model.step<N>` every so many steps of the task; 0 or less: never.
        run: the resolved configuration, kept in each model.
        keep: how many of the models on the way are kept; 0 or less: all.
    """

    def __init__(
        self, training: Training, save_path: Path, every: int, run: dict[str, Any], keep: int = -1
    ) -> None:
        self.training, self.save_path, self.every, self.run = training, save_path, every, run
        self.keep = keep

    def __call__(self, step: Step) -> None:
        for task in self.training.tasks:
            if task.is_target:
                self._look_at(task, step)

    def _look_at(self, task: Task, step: Step) -> None:
        trained = task is step.task
        if trained and self.every > 0 and task.step % self.every == 0 and task.step <= task.expected_steps:
            self._save(task, f"{ON_THE_WAY}{task.step}")
            keep_last(self.save_path / task.name, ON_THE_WAY, task.step, self.keep)
        if (trained and step.finished) or task.stopped_at == step.number:
            logger.info("%s: train finished!", task.name)
            self._save(task, "infer_model")

    def _save(self, task: Task, folder: str) -> None:
        path = self.save_path / task.name / folder
        save_model(self.training, task, path, self.run)
        logger.info("%s: inference model saved at %s", task.name, path)


def save_model(training: Training, task: Task, path: Path, run: dict[str, Any]) -> None:
    """Save what a task predicts with at this moment, with averaged weights where the run keeps averages."""
    with training.averaged():
        model_of(training, task).save(path, run)


class CheckpointSaver:
    """Writes `<save_path>/step_<N>` every `every` global steps; 0 or less: never.

    Args:
        training: whose state is saved.
        save_path: where.
        every: how often.
        identity: what makes the run this run.
        keep: how many checkpoints are kept; 0 or less: all.
    """

    def __init__(
        self, training: Training, save_path: Path, every: int, identity: dict[str, Any], keep: int = -1
    ) -> None:
        self.training, self.save_path, self.every, self.identity = training, save_path, every, identity
        self.keep = keep

    def __call__(self, step: Step) -> None:
        if self.every > 0 and step.number % self.every == 0:
            path = self.save_path / f"step_{step.number}"
            save_checkpoint(self.training, path, self.identity)
            logger.info("checkpoint saved at %s", path)
            keep_last(self.save_path, "step_", step.number, self.keep)
