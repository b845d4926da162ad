"""Tasks, their state in a run, and the plan of its steps."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from functools import cached_property
from itertools import islice
from pathlib import Path

import numpy as np
import numpy.typing as npt
import torch

from palm.backbone.base import Backbone
from palm.backbone.low_rank import lora_problems
from palm.config.files import data_path
from palm.config.run import TaskConfig, config_of
from palm.config.settings import NO_BATCH_SIZE, RunSettings, TaskSettings, TasksPerStep
from palm.core.cache import Cache
from palm.core.component import did_you_mean, raise_any, type_problems
from palm.core.errors import DataError, Problem, TrainingError
from palm.core.group import is_main_process, rank, world_size
from palm.core.logging import logger
from palm.core.saved import NO_LABEL, Tensors, mismatches
from palm.metrics import metric_problems
from palm.mixing import Mixing
from palm.mixing.strategies import TaskProgress, planned_updates
from palm.paradigm.base import HEADS, Head
from palm.reader.base import READERS, Reader
from palm.reader.cache import training_rows
from palm.reader.labels import RealLabels
from palm.reader.rows import SEQUENCE_ATTR, BadRows, Column, Rows
from palm.reader.tables.files import data_checksum
from palm.train.stream import TaskStream


def sharing_problems(tasks: Sequence[Task]) -> list[Problem]:
    """Check `share_rows_with` of all tasks before any data is read; return a sentence per problem."""
    by_name = {task.name: task for task in tasks}
    return [
        Problem(f"task {task.name!r}: share_rows_with {text}", "share_rows_with", task.name)
        for task in tasks
        for text in _wrong_sharing(task, by_name)
    ]


def _wrong_sharing(task: Task, by_name: Mapping[str, Task]) -> Iterator[str]:
    if (named := task.share_rows_with) is None:
        return
    if named == task.name:
        yield "names the task itself; remove it"
        return
    if (primary := by_name.get(named)) is None:
        yield f"names {named!r}; known: {', '.join(by_name)}{did_you_mean(named, by_name)}"
        return
    if (other := primary.share_rows_with) is not None:
        yield f"names {named!r}, which itself shares rows; name {other!r} instead"
    for name in ("batch_size", "gradient_accumulation_steps", "shuffle"):
        if (own := getattr(task, name)) != (its := getattr(primary, name)):
            yield f"{named!r}, but {name} is {own!r}, not {its!r}; make both equal"


def share_rows(tasks: Sequence[TaskState]) -> None:
    """Replace the streams of tasks that share rows by those of the tasks they name; all streams are open.

    Raises:
        DataError: the rows differ; the first different one is named.
    """
    by_name = {task.name: task for task in tasks}
    for task in tasks:
        if task.task.share_rows_with is None:
            continue
        primary = by_name[task.task.share_rows_with]
        begins = f"task {task.name!r} shares the rows of {primary.name!r}, but"
        _check_same_rows(task.stream.rows["token_ids"], primary.stream.rows["token_ids"], begins)
        task.stream = task.stream.in_order_of(primary.stream)
        # The rows are equal, so one batch shows whether the readers treat them the same way.
        one, other = (each.stream.batch(0) for each in (task, primary))
        for name in SEQUENCE_ATTR:
            if name in one and name in other and not torch.equal(one[name], other[name]):
                raise DataError(
                    f"{begins} their readers make different {name}; give both readers the same settings, and "
                    "do not share rows with mlm"
                )


def _check_same_rows(ours: Column, theirs: Column, begins: str) -> None:
    if np.array_equal(ours.lengths, theirs.lengths) and np.array_equal(ours.values, theirs.values):
        return
    both = min(len(ours), len(theirs))
    row = next((k for k in range(both) if not np.array_equal(ours[k], theirs[k])), both)
    tokens = " and ".join(str(len(each[row])) if row < len(each) else "no" for each in (ours, theirs))
    raise DataError(
        f"{begins} they differ from row {row + 1} on ({tokens} tokens; {len(ours)} and {len(theirs)} rows); "
        "give both the same texts in the same order, with an empty label (missing_labels: True) where a task "
        "has none, and readers with the same vocabulary and max_seq_len; if the row is longer than "
        "max_seq_len, increase that for both: readers may truncate differently"
    )


PREDICTION_ROWS = 32
"""Default number of rows per prediction step."""

FAR = 30
"""A number so many times as far from the median as all others is taken for a mistake, with a warning."""


@dataclass(eq=False, repr=False)
class Task(TaskSettings):
    """A reader and a paradigm under one name, with their data.

    Args:
        name: the task's name, used in logs, in `save_path` and in checkpoints.
        reader: reads its data.
        head: its head; tasks with the same object share its parameters.

    Raises:
        ConfigError: a value is outside its range.
    """

    name: str
    reader: Reader
    head: Head

    def __post_init__(self) -> None:
        for name in ("train_file", "dev_file", "pred_file", "pred_output_path"):
            if (path := getattr(self, name)) is not None:
                setattr(self, name, data_path(path))
        problems: list[str] = type_problems(
            Reader, "an object such as palm.reader.ClassifyReader(…)", reader=self.reader
        )
        problems += type_problems(Head, "an object such as palm.head.Classify(…)", head=self.head)
        if self.batch_size is None:
            problems.append(Problem(NO_BATCH_SIZE))
        if self.lora is not None:
            problems += lora_problems(self.lora)
        raise_any(
            Problem(f"task {self.name!r}: {line}", getattr(line, "setting", ""), self.name)
            for line in [*problems, *self.problems()]
        )

    @property
    def settings(self) -> TaskSettings:
        """The settings alone."""
        return TaskSettings(**{each.name: getattr(self, each.name) for each in fields(TaskSettings)})

    @property
    def config(self) -> TaskConfig:
        """Its configuration."""
        reader, head = config_of(READERS, self.reader), config_of(HEADS, self.head)
        return TaskConfig(self.name, reader, head, self.settings)

    @property
    def metric_names(self) -> Sequence[str]:
        """Names of the given metrics, or those of the head."""
        return self.head.metrics if self.metrics is None else self.metrics

    @property
    def rows_per_prediction(self) -> int:
        """Average number of rows per prediction step."""
        return self.pred_batch_size or self.batch_size or PREDICTION_ROWS


def _warn_of_one_label(task: Task, target: str, labels: Column) -> None:
    """Warn of training rows that all have the same label, or the same labels."""
    shape = task.head.targets_attr[target].shape
    width = shape[-1] if isinstance(shape[-1], int) else 1
    known = labels.values[labels.values != NO_LABEL]
    if known.size <= width or known.size % width or not labels.lengths.all():
        return
    rows = known.reshape(-1, width)
    if (rows == rows[0]).all():
        told = rows[0].tolist() if width > 1 else rows[0, 0]
        task.reader.warn_once(
            f"{task.name}: all {len(labels)} training rows have the label {told}, so there is nothing to "
            "learn; choose other rows or another column"
        )


def _warn_of_a_far_label(task: Task, values: npt.NDArray[np.floating]) -> None:
    """Warn of a number that is far from all others, such as 9999 for an unknown one."""
    away = np.abs(values - np.median(values))
    others = away[away < away.max()].max(initial=0)
    if away.max() > FAR * others > 0:
        far = f"{away.max() / others:.0f} times as far from the median {np.median(values):g} as any other"
        remedy = "if it stands for something else, such as an unknown number, leave such rows out"
        task.reader.warn_once(f"{task.name}: the label {values[away.argmax()]:g} is {far}; {remedy}")


class TaskState:
    """A task in a run: its batches and its progress.

    Args:
        task: the task.
        rows: its training rows.
        seed: the run's `random_seed`, for a task without its own seed.
        devices: number of devices that train; the number of processes by default.

    Attributes:
        name, reader, head: those of the task.
        stream: batches of its training data.
        expected_steps: number of planned steps.
        step: number of steps so far.
        sha256: the checksum of its training file, on rank 0.
        stopped_at: the global step at which it was finished early; None if it was not.

    Raises:
        TrainingError: too few rows for one step.
    """

    def __init__(self, task: Task, rows: Rows, seed: int, devices: int | None = None) -> None:
        self.task = task
        self.name = task.name
        self.reader = task.reader
        self.head = task.head
        self.expected_steps = 0
        self.step = 0
        self.stopped_at: int | None = None
        self.sha256 = ""
        if task.train_file is not None and is_main_process():
            self.sha256 = data_checksum(task.train_file)
        if len(task.head.targets_attr) == 1 and (target := next(iter(task.head.targets_attr))) in rows:
            task.head.count_labels(rows[target].values)
            _warn_of_one_label(task, target, rows[target])
            if target == RealLabels.target:
                _warn_of_a_far_label(task, rows[target].values)
        assert task.batch_size is not None
        self.stream = TaskStream(
            task.name,
            task.reader,
            rows,
            batch_size=task.batch_size,
            seed=seed if task.seed is None else task.seed,
            shuffle=task.shuffle,
            rank=rank(),
            world_size=devices or world_size(),
        )
        batches = self.stream.steps_per_epoch
        if batches < task.gradient_accumulation_steps:
            raise TrainingError(
                f"task {task.name!r}: its rows fill only {batches} batches, too few for one step; set "
                f"gradient_accumulation_steps (now {task.gradient_accumulation_steps}) to {batches} or less, "
                "or add data"
            )

    @property
    def is_target(self) -> bool:
        """True if it gets an exact number of steps and a saved model."""
        return self.task.is_target

    @property
    def done(self) -> bool:
        """True if it has had its planned steps or was finished early."""
        # Not `==`: a finished target is still drawn until the last one is finished.
        return self.step >= self.expected_steps or self.stopped_at is not None

    @property
    def steps_per_epoch(self) -> int:
        """Full steps in one pass over its training rows."""
        return self.stream.steps_per_epoch // self.task.gradient_accumulation_steps

    @property
    def epoch(self) -> int:
        """The epoch of its last step, from 0."""
        return max(self.step - 1, 0) // self.steps_per_epoch

    def batches(self, step: int) -> list[Tensors]:
        """Return the batches of step number `step`, counted from 0."""
        parts = self.task.gradient_accumulation_steps
        return [self.stream.batch(step * parts + k) for k in range(parts)]

    def progress(self, step: int | None = None) -> TaskProgress:
        """Return its progress after `step` steps, by default the present number, for a mixing strategy."""
        return TaskProgress(
            name=self.name,
            mix_ratio=self.task.mix_ratio,
            rows=len(self.stream.rows),
            steps_per_epoch=self.steps_per_epoch,
            is_target=self.is_target,
            step=self.step if step is None else step,
            expected_steps=self.expected_steps,
            share_rows_with=self.task.share_rows_with,
        )


def opened(task: Task, seed: int, cache: Cache | None = None, devices: int | None = None) -> TaskState:
    """Encode a task's training file, and return the task at its first batch.

    Args:
        task: the task.
        seed: the run's `random_seed`, for a task without its own seed.
        cache: the cache of encoded rows; None for no cache.
        devices: number of devices that train; the number of processes by default.

    Raises:
        DataError: a row cannot be used, or there are no rows.
        TrainingError: too few rows for one step.
    """
    assert task.train_file is not None
    if task.print_first_n > 0:
        _log_first_rows(task, task.train_file)
    return TaskState(task, training_rows(task.reader, task.train_file, cache), seed, devices)


def _log_first_rows(task: Task, path: Path) -> None:
    reader = task.reader
    reader.bad_rows = BadRows(path, reader.on_bad_row)  # reported when the file is encoded
    examples = list(islice(reader.read(path, with_targets=True), task.print_first_n))
    rows = reader.encode(examples, with_targets=True)
    reader.bad_rows = None
    for number, example in enumerate(examples):
        logger.info("%s: example %d: %s", task.name, number, example)
        for row in range(len(rows)):
            if int(rows["example"][row]) == number:
                fields = {name: column[row].tolist() for name, column in rows.columns.items()}
                logger.info("%s: row %d: %s", task.name, row, fields)


def wiring_problems(task: Task, backbone: Backbone, for_train: bool = True) -> list[Problem]:
    """Check that a task's reader, backbone and head fit together; return a sentence per problem."""
    reader = task.reader
    head = task.head
    features = {**reader.outputs_attr, **backbone.outputs_attr}
    wanted = head.targets_attr if for_train else {}
    given = reader.targets_attr
    # If the loss needs another kind of label, name the setting that produces it.
    types = {LABEL_TYPES[name] for name in LABEL_TYPES.keys() & wanted.keys() - given.keys()}
    hint = f"; set label_type: {types.pop()}" if types and "label_type" in reader.settings else ""
    found = [
        *mismatches("backbone", backbone.inputs_attr, "reader", reader.outputs_attr),
        *mismatches("head", head.inputs_attr, "backbone", features),
        *(f"{line}{hint}" for line in mismatches("head's loss", wanted, "reader", given)),
    ]
    found += _size_problems(reader, backbone)
    if task.dev_file is not None:
        found += metric_problems(task.metric_names, reader.gold_names)
    lines = ((line, line.setting if isinstance(line, Problem) else "") for line in found)
    return [Problem(f"task {task.name!r}: {line}", setting, task.name) for line, setting in lines]


def _size_problems(reader: Reader, backbone: Backbone) -> list[Problem]:
    """Check that the backbone's tables have a row for every token and every position."""
    found: list[Problem] = []
    rows = backbone.settings.get("vocab_size")
    tokens = reader.vocab_size
    if rows is not None and tokens > rows:
        text = (
            f"the vocabulary {str(reader.vocab_path)!r} has {tokens} entries, the backbone's embedding "
            f"table only {rows} rows (vocab_size); use the vocabulary of the backbone"
        )
        found.append(Problem(text))
    longest = backbone.max_tokens
    length = reader.settings.get("max_seq_len")
    if longest is not None and length is not None and length > longest:
        text = (
            f"max_seq_len is {length}, the backbone's position table ends at {longest} "
            f"(max_position_embeddings); set max_seq_len to {longest} or less"
        )
        found.append(Problem(text, "max_seq_len"))
    return found


LABEL_TYPES = {"label_ids": "class", "label_values": "real"}
"""Name of the labels in a batch -> the reader's `label_type` that produces them."""


MANY_EPOCHS = 1e6
"""A length at which rounded steps have the proportions of the tasks."""


@dataclass(frozen=True, kw_only=True)
class StepPlan:
    """The plan of a run before its first step, used by training and by everything that predicts a training.

    Args:
        tasks: the state of each task before the first step, with its expected steps.
        mixing: the strategy that draws tasks.
        tasks_per_step: number of distinct tasks that a step trains.
        max_steps: maximum number of steps; None for no limit.
    """

    tasks: Sequence[TaskProgress]
    mixing: Mixing
    tasks_per_step: TasksPerStep = 1
    max_steps: int | None = None

    @classmethod
    def of(cls, tasks: Sequence[TaskState], mixing: Mixing, settings: RunSettings) -> StepPlan:
        """Return the plan of tasks before their first step."""
        return cls(
            tasks=[task.progress(0) for task in tasks],
            mixing=mixing,
            tasks_per_step=settings.tasks_per_step,
            max_steps=settings.max_steps,
        )

    @cached_property
    def primary_tasks(self) -> list[TaskProgress]:
        """The tasks that are drawn; each other task shares the rows of one of them and is trained with it."""
        return [task for task in self.tasks if task.share_rows_with is None]

    @property
    def count(self) -> int:
        """Maximum number of tasks that a step draws."""
        return len(self.primary_tasks) if self.tasks_per_step == "all" else self.tasks_per_step

    @cached_property
    def main(self) -> TaskProgress:
        """The main task: the first target, whose epochs are counted."""
        return next(task for task in self.tasks if task.is_target)

    @property
    def expected_steps(self) -> dict[str, int]:
        """Task -> its expected steps."""
        return {task.name: task.expected_steps for task in self.tasks}

    @cached_property
    def total_steps(self) -> int:
        """Number of optimizer steps of the whole run, the horizon of the learning-rate schedule."""
        total = self._total([task.expected_steps for task in self.primary_tasks])
        return total if self.max_steps is None else min(total, self.max_steps)

    def _total(self, expected: Sequence[int]) -> int:
        # Tasks that share rows are trained in the steps of another task, so only drawn tasks count.
        return planned_updates(expected, self.count)

    def drawn(
        self, seed: int, step: int, primary_tasks: Sequence[TaskProgress], stopped: Collection[str] = ()
    ) -> list[str]:
        """Return the tasks that global step `step`, from 0, trains, given the primary tasks' progress.

        Tasks that were stopped early are not trained; rows that several tasks share are drawn as long as one
        of these tasks is trained.
        """
        # A function of progress only, so a plan made before the run draws what the run will draw.
        trained = [task for task in self.tasks if task.name not in stopped]
        rows = {task.share_rows_with or task.name for task in trained}
        open_tasks = [task for task in primary_tasks if task.name in rows]
        chosen = {open_tasks[k].name for k in self.mixing.draw_several(seed, step, open_tasks, self.count)}
        return [task.name for task in trained if (task.share_rows_with or task.name) in chosen]

    def draws(self, seed: int) -> Iterator[list[str]]:
        """Yield the tasks of every step of the run.

        Draws are a function of the seed and the step, so this is exact unless the run stops early or its
        draws follow dev scores.
        """
        done = Counter[str]()
        primary_tasks = list(self.primary_tasks)
        targets = [task for task in self.tasks if task.is_target]
        step = 0
        while step != self.max_steps and any(done[task.name] < task.expected_steps for task in targets):
            names = self.drawn(seed, step, primary_tasks)
            yield names
            done.update(names)
            primary_tasks = [replace(t, step=done[t.name]) if t.name in names else t for t in primary_tasks]
            step += 1

    def over_epochs(self, num_epochs: float | None, reference: str | None = None) -> StepPlan:
        """Return the plan of a run whose length is counted in epochs of one task.

        Args:
            num_epochs: passes over the data of `reference`; None: as many as `max_steps` allows.
            reference: the task whose epochs are counted; the main task by default.

        Raises:
            ConfigError: the mixing strategy does not suit this run.
        """
        tasks = self.primary_tasks
        counted = next(task for task in self.tasks if task.name == (reference or self.main.name))
        # A task that shares rows has as many steps per epoch as the task whose rows it shares.
        place = [task.name for task in tasks].index(counted.share_rows_with or counted.name)

        steps = self.mixing.expected_steps(tasks, place, MANY_EPOCHS if num_epochs is None else num_epochs)
        if self.max_steps is None:
            assert num_epochs is not None, "neither num_epochs nor max_steps"
        elif num_epochs is None or self._total(steps) > self.max_steps:
            steps = self._shared_out(steps, self.max_steps)
        by_primary = {task.name: count for task, count in zip(self.primary_tasks, steps, strict=True)}
        return replace(
            self,
            tasks=[
                replace(task, expected_steps=by_primary[task.share_rows_with or task.name])
                for task in self.tasks
            ],
        )

    def _shared_out(self, weights: Sequence[float], max_steps: int) -> list[int]:
        """Divide steps of the run, each of `count` tasks, among the tasks, in proportion to weights."""
        shares = np.asarray(weights) * (max_steps * min(self.count / sum(weights), 1 / max(weights)))
        steps = np.floor(np.round(shares, 6)).astype(int)
        left = round(shares.sum()) - int(steps.sum())
        steps[np.argsort(steps - shares, kind="stable")[:left]] += 1  # the largest remainders
        return list(map(int, steps))


def expect(tasks: Sequence[TaskState], plan: StepPlan) -> None:
    """Set the expected steps of all tasks, and log the plan.

    Raises:
        TrainingError: a target would have no steps.
    """
    for task in tasks:
        task.expected_steps = plan.expected_steps[task.name]
        if task.is_target and task.expected_steps == 0:
            raise TrainingError(
                f"task {task.name!r} would get no steps; increase num_epochs, max_steps, "
                f"or its mix_ratio (now {task.task.mix_ratio})"
            )
        if task.is_target:
            logger.info("%s: expected train steps %d.", task.name, task.expected_steps)
    if plan.total_steps == plan.max_steps:
        logger.info("max_steps: the run ends after %d steps.", plan.max_steps)
    logger.info("Estimated overall train steps %d.", plan.total_steps)


def step_problems(tasks_per_step: TasksPerStep, balance: str | None, tasks: Sequence[Task]) -> list[Problem]:
    """Check `tasks_per_step` and the name of `balance` against the tasks of a run."""
    names = {task.name for task in tasks}
    # A `share_rows_with` that names the task itself or no task is reported elsewhere.
    drawn = [task for task in tasks if task.share_rows_with not in names - {task.name}]
    if tasks_per_step == "all":
        together = len(tasks)
    elif isinstance(tasks_per_step, int) and 1 <= tasks_per_step <= len(drawn):
        together = tasks_per_step + len(tasks) - len(drawn)
    else:
        text = (
            f"tasks_per_step should be an integer from 1 to {len(drawn)}, the number of drawn tasks, "
            f"or all, not {tasks_per_step!r}"
        )
        return [Problem(text, "tasks_per_step")]
    if balance is None or together >= 2:
        return []
    text = (
        f"balance: {balance} weights the tasks of a step, and here a step has only one; set "
        "tasks_per_step to 2 or more, or all, or leave balance out"
    )
    return [Problem(text, "balance")]
