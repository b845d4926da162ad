"""Scoring the tasks of a run on their dev data while it trains, without disturbing it."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from palm.core.logging import logger
from palm.core.shown import shown_score
from palm.engine.inference.adapted import Adapted
from palm.engine.inference.inference import InferenceModel
from palm.engine.training.events import Completed, Evaluated, Event, event_of
from palm.engine.training.loop import Step, Training
from palm.engine.training.task import Task
from palm.metrics import metrics_of
from palm.reader.text.bad_rows import BadRows

Scores = Mapping[str, float]
"""The numbers of a task's metrics by name, those of its first metric first."""

JsonScores = dict[str, float | None]
"""Scores as JSON has them, with None for what is not a number."""


@dataclass
class Best:
    """The best evaluation so far, of a task or of the whole run.

    Args:
        score: how good it was (see `Metric.normalized_score`); -inf before the first evaluation.
        step: its global step.
        waited: evaluations since then.
    """

    score: float = -math.inf
    step: int = 0
    waited: int = 0

    def take(self, score: float, step: int) -> None:
        """Compare with one more evaluation; only a better one replaces the best."""
        if score > self.score:
            self.score = score
            self.step = step
            self.waited = 0
        else:
            self.waited += 1


class Evaluator:
    """Scores the tasks that have a `dev_file`, every so many steps and after every epoch of the main task.

    An observer: call it with every step. It uses the averaged weights where the run keeps averages.

    Args:
        training: the run; checkpoints of it hold what was found.
        every: evaluate every so many global steps; 0 or less: not for their sake.
        every_epoch: evaluate at the end of every epoch of the main task, the first target.
        best_by: the tasks whose mean normalized score is that of the whole run; all targets where None.

    Attributes:
        evaluations: those so far.
        best: task -> its best evaluation.
        overall: the best of the whole run, by `best_by`.
        means: global step and mean normalized score by `best_by` of every evaluation.

    Raises:
        DataError: dev data that cannot be used, with its file and line.
    """

    def __init__(
        self,
        training: Training,
        every: int = -1,
        every_epoch: bool = True,
        best_by: Sequence[str] | None = None,
    ) -> None:
        self.training = training
        self.every = every
        self.every_epoch = every_epoch
        self.tasks = [task for task in training.tasks if task.dev_file is not None]
        targets = [task.name for task in self.tasks if task.is_target]
        self.best_by = targets if best_by is None else list(best_by)
        self.main = next(task for task in training.tasks if task.is_target)
        self.evaluations: list[Evaluated] = []
        self.best = {task.name: Best() for task in self.tasks}
        self.overall = Best()
        self.means: list[tuple[int, float]] = []
        training.attach("evaluator", self)
        for task in self.tasks:
            logger.info("%s: %d examples to evaluate on", task.name, count_examples(task))

    @classmethod
    def of(
        cls, training: Training, every: int, every_epoch: bool, best_by: Sequence[str] | None = None
    ) -> Evaluator | None:
        """Return the evaluator of a run; None if no task has dev data."""
        has_data = any(task.dev_file is not None for task in training.tasks)
        return cls(training, every, every_epoch, best_by) if has_data else None

    def __call__(self, event: Event) -> Evaluated | None:
        """Evaluate after a step for which this is due."""
        if isinstance(event, Completed):
            is_done = bool(self.evaluations) and self.evaluations[-1].step == self.training.step
            return None if is_done else self.evaluate()
        if not isinstance(event, Step):
            return None
        regular = self.every > 0 and event.number % self.every == 0
        epoch_ends = event.part_of(self.main) is not None and self.main.step % self.main.steps_per_epoch == 0
        return self.evaluate() if regular or (self.every_epoch and epoch_ends) else None

    def evaluate(self) -> Evaluated:
        """Evaluate now."""
        scores = {}
        dev_loss = {}
        # With fsdp this device has only parts of the weights; apart() gathers them.
        with self.training.averaged(), self.training.replica.apart():
            for task in self.tasks:
                assert task.dev_file is not None
                model = model_of(self.training, task)
                found = model.evaluate_with_loss(task.dev_file, task.metric_names, tune=True)
                scores[task.name], loss = found
                if loss is not None:
                    dev_loss[task.name] = loss
        self._take(evaluation := Evaluated(self.training.step, scores, dev_loss))
        best = [name for name, found in self.best.items() if found.step == evaluation.step]
        evaluation = replace(evaluation, best=best)
        for task in self.tasks:
            self.training.record_score(task, normalized_score(task, scores[task.name]))
            shown = ", ".join(f"{name} {shown_score(value)}" for name, value in scores[task.name].items())
            mark = " (best)" if task.name in best else ""
            logger.info("%s: step %d: %s%s", task.name, evaluation.step, shown, mark)
        return evaluation

    def _take(self, evaluation: Evaluated) -> None:
        self.evaluations.append(evaluation)
        found = {task.name: normalized_score(task, evaluation.scores[task.name]) for task in self.tasks}
        for name, best in self.best.items():
            best.take(found[name], evaluation.step)
        if self.best_by:
            mean = math.fsum(found[name] for name in self.best_by) / len(self.best_by)
            self.overall.take(mean, evaluation.step)
            self.means.append((evaluation.step, mean))

    def state_dict(self) -> dict[str, Any]:
        """Return all evaluations, JSON-ready."""
        return {"evaluations": [Evaluated(each.step, each.scores).as_line() for each in self.evaluations]}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restore `state_dict`; tasks that had no dev data then count from now on."""
        for line in state["evaluations"]:
            event = event_of(line)
            assert isinstance(event, Evaluated)
            self._take(
                Evaluated(event.step, {task.name: event.scores.get(task.name, {}) for task in self.tasks})
            )


def json_ready(scores: Scores) -> JsonScores:
    """Scores with None for what is not a number."""
    return {name: None if math.isnan(value) else value for name, value in scores.items()}


def model_of(training: Training, task: Task) -> InferenceModel:
    """Return the model of a task at this moment of a run; it has the run's weights, not copies."""
    model = training.model
    made = InferenceModel(
        task.name,
        task.reader,
        model.encoder(task.name),
        task.head,
        batch_size=task.rows_per_prediction,
        precision=model.precision,
    )
    if task.adapters is not None:
        made.adapted = Adapted(task.adapters, model.backbone, None)
    return made


def count_examples(task: Task) -> int:
    """Count the examples of a task's dev data; all of them are read.

    Raises:
        DataError: some that cannot be used, with file and line, unless they may be left out.
    """
    assert task.dev_file is not None
    bad = task.reader.bad_rows = BadRows(task.dev_file, task.reader.on_bad_row)
    try:
        count = sum(1 for _ in task.reader.truths(task.reader.read_true(task.dev_file)))
    finally:
        task.reader.bad_rows = None
    bad.finish(task.reader.warn_once)
    task.bad_dev_rows = bad.records, bad.count
    return count


def normalized_score(task: Task, scores: Scores) -> float:
    """Normalize a task's first metric: 1 is best, 0 stands for not a number."""
    metric = metrics_of(task.metric_names[:1])[0]
    score = metric.normalized_score(scores.get(metric.main, math.nan))
    # What is not a number compares with nothing, and would stay the best for ever.
    return 0.0 if math.isnan(score) else score


class EarlyStopping:
    """Declares targets finished that did not get better; the run ends when all targets are.

    A target that is finished stays in the draw, for it still helps the others, as after its last step.

    Args:
        evaluator: tells what is best.
        patience: evaluations without a better one after which it is enough.
        together: look at the whole run instead of each target by itself, and end all at once.
    """

    def __init__(self, evaluator: Evaluator, patience: int, together: bool = False) -> None:
        self.evaluator = evaluator
        self.patience = patience
        self.together = together

    def __call__(self, event: Event) -> None:
        if not isinstance(event, Evaluated):
            return
        for task in self.evaluator.training.tasks:
            best = self.evaluator.overall if self.together else self.evaluator.best.get(task.name)
            if task.is_target and not task.done and best is not None and best.waited >= self.patience:
                task.stopped_at = event.step
                logger.info(
                    "%s: early stopping: no improvement in %d evaluations (best at step %d)",
                    task.name,
                    best.waited,
                    best.step,
                )
