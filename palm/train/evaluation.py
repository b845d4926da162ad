"""Evaluation of a run's tasks on their dev data during training, without affecting the training."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from palm.core.cache import LESS_PREDICTED, explain_limits
from palm.core.group import gather_objects, is_main_process
from palm.core.logging import logger, shown_score
from palm.metrics import metrics_of
from palm.metrics.base import baseline_scores
from palm.metrics.resampling import Pair
from palm.reader import Record
from palm.reader.rows import BadRows, Rows
from palm.reader.tables.files import data_checksum
from palm.train.callbacks import Completed, Evaluated, Event, ScoredRows, event_of
from palm.train.counting import MOST_RESAMPLED, counted_rows
from palm.train.loop import Step, Training
from palm.train.task import Task, TaskState
from palm.train.task_model import Chunk, Losses, TaskModel, encoded, mean_loss

Scores = Mapping[str, float]
"""Values of a task's metrics by name, those of its first metric first."""

JsonScores = dict[str, float | None]
"""JSON-ready scores, with None for NaN."""


@dataclass
class Best:
    """The best evaluation so far, of a task or of the whole run.

    Args:
        score: its normalized score (see `Metric.normalized_score`); -inf before the first evaluation.
        step: its global step.
        waited: number of evaluations since then.
    """

    score: float = -math.inf
    step: int = 0
    waited: int = 0

    def update(self, score: float, step: int) -> None:
        """Compare with the next evaluation, which replaces the best only if it is better; NaN never is.

        Nobody waits for an improvement of a score that was always NaN.
        """
        if score > self.score:
            self.score = score
            self.step = step
            self.waited = 0
        elif self.score > -math.inf:
            self.waited += 1


class Evaluator:
    """A callback that evaluates the tasks with a `dev_file`, at intervals and after epochs of the main task.

    It uses the averaged weights if the run keeps averages.

    Args:
        training: the run; its checkpoints contain the evaluations.
        every: evaluate every so many global steps; 0 or less: never at a fixed interval.
        every_epoch: evaluate at the end of every epoch of the main task, the first target.

    Attributes:
        evaluations: all evaluations so far.
        dev: task -> its dev data, read and tokenized once.
        best: task -> its best evaluation.
        overall: the best evaluation of the whole run, by the mean normalized score of all targets.

    Raises:
        DataError: dev data that cannot be used, with its file and line.
    """

    def __init__(self, training: Training, every: int = -1, every_epoch: bool = True) -> None:
        self.training = training
        self.every = every
        self.every_epoch = every_epoch
        self.tasks = [task for task in training.tasks if task.task.dev_file is not None]
        self.main = next(task for task in training.tasks if task.is_target)
        self.evaluations: list[Evaluated] = []
        self.best = {task.name: Best() for task in self.tasks}
        self.overall = Best()
        self.dev = {task.name: load_dev_data(task) for task in self.tasks}
        training.attach("evaluator", self)
        for task in self.tasks:
            logger.info("%s: %d dev examples", task.name, self.dev[task.name].num_examples)

    @classmethod
    def of(cls, training: Training) -> Evaluator | None:
        """Return the evaluator that the settings of a run describe; None if no task has dev data."""
        if all(task.task.dev_file is None for task in training.tasks):
            return None
        settings = training.config.settings
        return cls(training, settings.eval_every_n_steps, settings.eval_every_epoch)

    @property
    def most_evaluations(self) -> int:
        """The most evaluations that the run can have."""
        regular = self.training.total_steps // self.every if self.every > 0 else 0
        epochs = self.main.expected_steps // self.main.steps_per_epoch if self.every_epoch else 0
        return regular + epochs + 1

    def __call__(self, event: Event) -> Evaluated | None:
        """Evaluate if an evaluation is due after this event."""
        if isinstance(event, Completed):
            is_done = bool(self.evaluations) and self.evaluations[-1].step == self.training.step
            made = None if is_done else self.evaluate()
            self._warn_of_baselines()
            return made
        if not isinstance(event, Step):
            return None
        regular = self.every > 0 and event.number % self.every == 0
        epoch_ends = event.part_of(self.main) is not None and self.main.step % self.main.steps_per_epoch == 0
        return self.evaluate() if regular or (self.every_epoch and epoch_ends) else None

    @explain_limits(LESS_PREDICTED)
    def evaluate(self) -> Evaluated:
        """Evaluate all tasks that have dev data."""
        scores = {}
        rows = {}
        dev_loss = {}
        with self.training.averaged():
            for task in self.tasks:
                losses: Losses = {}
                dev = self.dev[task.name]
                pairs: list[Pair] | None = [] if dev.num_examples <= MOST_RESAMPLED else None
                model = model_of(self.training, task.task)
                names = task.task.metric_names
                scores[task.name] = model.score(dev.chunks, names, losses=losses, tune=True, pairs=pairs)
                if pairs:
                    examples = [example for chunk in dev.chunks for example in chunk.examples]
                    rows[task.name] = counted_rows(task.reader, metrics_of(names), examples, pairs)
                elif pairs is None:
                    baseline = baseline_scores(metrics_of(names), dev.golds)
                    rows[task.name] = ScoredRows(dev.num_examples, baseline)
                loss = mean_loss(gather_objects(losses))
                if loss is None and pairs:
                    loss = task.head.loss_of_pairs(pairs)
                if loss is not None:
                    dev_loss[task.name] = loss
        mean = self._record(evaluation := Evaluated(self.training.step, scores, dev_loss, rows=rows))
        best = [name for name, found in self.best.items() if found.waited == 0 and found.score > -math.inf]
        evaluation = replace(evaluation, best=best, mean=mean)
        for task in self.tasks:
            if self.best[task.name].score == -math.inf:
                self._warn_of_nan(task)
        return evaluation

    def _warn_of_baselines(self) -> None:
        """Warn of tasks whose baseline is as good."""
        for task in self.tasks if is_main_process() else ():
            metric = metrics_of(task.task.metric_names[:1])[0]
            constant = baseline_scores([metric], self.dev[task.name].golds).get(metric.main, math.nan)
            if -math.inf < self.best[task.name].score <= metric.normalized_score(constant):
                logger.warning(
                    "%s: no evaluation was better than %s, whose %s is %s; "
                    "see the errors in `palm report`, and train longer or with more rows",
                    task.name,
                    metric.baseline_name,
                    metric.main,
                    shown_score(constant),
                )

    def _warn_of_nan(self, task: TaskState) -> None:
        task.reader.warn_once(
            f"{task.name}: {task.task.metric_names[0]} is NaN on the dev data, as if all labels or all "
            "predictions were equal; as long as it is, it chooses no best model and stops nothing early"
        )

    def _record(self, evaluation: Evaluated) -> float | None:
        """Compare with the best so far; return the mean normalized score of all targets."""
        self.evaluations.append(evaluation)
        found = {task.name: normalized_score(task.task, evaluation.scores[task.name]) for task in self.tasks}
        for name, best in self.best.items():
            best.update(found[name], evaluation.step)
        of_targets = [found[task.name] for task in self.tasks if task.is_target]
        if not of_targets:
            return None
        mean = math.fsum(of_targets) / len(of_targets)
        self.overall.update(mean, evaluation.step)
        return mean

    def state_dict(self) -> dict[str, Any]:
        """Return all evaluations, JSON-ready."""
        return {"evaluations": [Evaluated(each.step, each.scores).as_line() for each in self.evaluations]}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restore `state_dict`; tasks that had no dev data then have no scores for those evaluations."""
        for line in state["evaluations"]:
            event = event_of(line)
            assert isinstance(event, Evaluated)
            self._record(
                Evaluated(event.step, {task.name: event.scores.get(task.name, {}) for task in self.tasks})
            )


def json_ready(scores: Scores) -> JsonScores:
    """Replace NaN by None."""
    return {name: None if math.isnan(value) else value for name, value in scores.items()}


def model_of(training: Training, task: Task) -> TaskModel:
    """Return the model of a task in its current state; it shares the run's weights."""
    model = training.model
    return TaskModel(
        task.name,
        task.reader,
        model.encoder(task.name),
        task.head,
        batch_size=task.rows_per_prediction,
        precision=model.precision,
    )


@dataclass(frozen=True)
class DevData:
    """A task's dev data as it was when the run began.

    Args:
        chunks: its examples and their rows, with and without targets.
        num_examples: number of its examples.
        sha256: checksum of the file.
        golds: their gold values.
    """

    chunks: Sequence[Chunk]
    num_examples: int
    sha256: str
    golds: Sequence[Record]


def load_dev_data(task: TaskState) -> DevData:
    """Read, check and tokenize a task's dev data.

    Raises:
        DataError: examples that cannot be used, with file and line, unless `on_bad_row` permits them.
    """
    dev_file = task.task.dev_file
    assert dev_file is not None
    sha256 = data_checksum(dev_file)
    reader = task.reader
    bad = reader.bad_rows = BadRows(dev_file, reader.on_bad_row)
    try:
        examples = list(reader.read_gold(dev_file))
        golds = list(map(reader.gold, examples))  # labels may be missing
    finally:
        reader.bad_rows = None
    bad.finish(reader.warn_once)
    chunks = list(encoded(reader, examples, with_targets=True))
    _warn_of_leaks(task, chunks)
    return DevData(chunks, len(examples), sha256, golds)


def _token_hashes(rows: Rows) -> Iterator[int]:
    return (hash(rows["token_ids"][row].tobytes()) for row in range(len(rows)))


def _warn_of_leaks(task: TaskState, chunks: Sequence[Chunk]) -> None:
    """Warn of dev rows that are also training rows, unless the training file was named as dev_file."""
    given = task.task
    if given.dev_file == given.train_file or not is_main_process():
        return
    dev = [each for chunk in chunks for each in _token_hashes(chunk.rows)]
    seen = set(dev).intersection(_token_hashes(task.stream.rows))
    if leaked := sum(row in seen for row in dev):
        logger.warning(
            "%s: %d of %d rows of the dev_file are also in the train_file, so scores are too high; remove "
            "them from one of the two (`palm check` names them)",
            task.name,
            leaked,
            len(dev),
        )


def normalized_score(task: Task, scores: Scores) -> float:
    """Normalize a task's first metric: 1 is best, and NaN stays NaN."""
    metric = metrics_of(task.metric_names[:1])[0]
    return metric.normalized_score(scores.get(metric.main, math.nan))


class EarlyStopping:
    """A callback that marks targets as finished when they stop improving; the run ends when all are.

    A target that is finished early is not trained any longer: its model would only overfit.

    Args:
        evaluator: keeps the best evaluations.
        patience: number of evaluations without improvement after which a target is finished.
    """

    def __init__(self, evaluator: Evaluator, patience: int) -> None:
        self.evaluator = evaluator
        self.patience = patience
        if patience >= (most := evaluator.most_evaluations):
            logger.warning(
                "early_stopping_patience is %d, but the run has at most %d evaluations, so it stops no task; "
                "lower it, or leave it out",
                patience,
                most,
            )

    def __call__(self, event: Event) -> None:
        if not isinstance(event, Evaluated):
            return
        for task in self.evaluator.training.tasks:
            best = self.evaluator.best.get(task.name)
            if task.is_target and not task.done and best is not None and best.waited >= self.patience:
                task.stopped_at = event.step
                logger.info(
                    "%s: early stopping: no improvement in %d evaluations (best at step %d)",
                    task.name,
                    best.waited,
                    best.step,
                )
