"""A task: its reader, its head, its data and its share of the steps."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import KW_ONLY, dataclass, field
from itertools import islice
from pathlib import Path
from typing import Any

from torch import nn

from palm.backbone.base import Backbone
from palm.backbone.low_rank import LowRank, lora_problems
from palm.config import DataPath
from palm.core.checks import count_problems, positive_problems, raise_any, type_problems
from palm.core.errors import TrainingError
from palm.core.logging import logger
from palm.core.tensor_specs import Tensors, mismatches
from palm.metrics import metric_problems
from palm.mixing.base import TaskProgress
from palm.paradigm.base import Head
from palm.parallel.group import rank, world_size
from palm.reader.base import Reader
from palm.reader.cache import DataCache, training_rows
from palm.reader.rows.rows import Rows
from palm.reader.tables.files import file_facts
from palm.reader.text.bad_rows import BadRows
from palm.train.stream import TaskStream

PREDICTION_ROWS = 32
"""Default number of rows per prediction step."""

NO_BATCH_SIZE = "neither batch_size (rows per step) nor max_tokens_per_batch is given; set one of them"


@dataclass(eq=False, repr=False)
class Task:
    """A reader and a paradigm under one name, with their data.

    Args:
        name: the task's name, used in logs, in `save_path` and in checkpoints.
        reader: reads its data.
        head: its head; tasks with the same object share its parameters.
        batch_size: rows per training step on each device.
        max_tokens_per_batch: in place of `batch_size`: a training step has as many of the next rows as fit
            into this number of tokens, not counting padding.
        gradient_accumulation_steps: batches per training step, if a larger `batch_size` does not fit into
            memory; the step is the same as with one batch of all their rows.
        train_file: the training data.
        dev_file: the data, with labels, on which the task is evaluated during and after training.
        metrics: names of metrics or dotted paths of classes; the first one decides which model is best. The
            default is those of the paradigm.
        pred_file: the data that `controller.pred` predicts.
        pred_output_path: the folder for predictions, `<save_path>/<task>` by default; or a file name ending
            in `.jsonl`, `.csv` or `.parquet` to write a table.
        pred_batch_size: average number of rows per prediction step; `batch_size` by default, or 32.
        shuffle: draw a new order of the training rows for every epoch.
        seed: seed for the order of the task's rows and for masking; the run's `random_seed` by default.
        print_first_n: number of examples, with their encoded rows, to log before training.
        loss_weight: factor of the task's loss in the gradient; losses are reported without it.
        learning_rate_factor: factor of all learning rates, including the encoder's, in steps of this task.
        head_learning_rate: learning rate of the task's head; `learning_rate` by default.
        mix_ratio: how often the task is drawn, relative to the others.
        is_target: True if it gets an exact number of steps and a saved model, False if it only helps.
        share_rows_with: the task that has the same rows with other labels; this task is trained in each of
            its steps, on the same rows, which are encoded once.
        private_layers: number of topmost layers of the encoder that, with the pooler, are the task's own;
            they start as copies of the shared ones.
        lora: the task's own low-rank adapters on linear layers of the encoder: a mapping of rank (8),
            alpha (16) and targets ([query, value]), or {from: DIR} for a directory in PEFT's format.

    Attributes:
        stream: batches of its training data, once that is loaded.
        expected_steps: number of planned steps.
        step: number of steps so far.
        scores: its dev scores so far, from 0 to 1; higher is better.
        bad_dev_rows: rows of its dev data that were skipped or repaired, as in `Rows.bad`.
        top: its own layers of the encoder, if any; set when a model is made of it.
        adapters: its `lora` adapters, if any; set when a model is made of it.
        stopped_at: the global step at which it was finished early; None if it was not.

    Raises:
        ConfigError: a value is outside its range.
    """

    name: str
    reader: Reader
    head: Head
    _: KW_ONLY
    batch_size: int | None = None
    max_tokens_per_batch: int | None = None
    gradient_accumulation_steps: int = 1
    train_file: DataPath | None = None
    dev_file: DataPath | None = None
    metrics: list[str] | None = None
    pred_file: DataPath | None = None
    pred_output_path: Path | None = None
    pred_batch_size: int | None = None
    shuffle: bool = True
    seed: int | None = None
    print_first_n: int = 0
    loss_weight: float = 1.0
    learning_rate_factor: float = 1.0
    head_learning_rate: float | None = None
    mix_ratio: float = 1.0
    is_target: bool = True
    share_rows_with: str | None = None
    private_layers: int = 0
    lora: Mapping[str, Any] | None = None
    top: nn.ModuleDict | None = field(default=None, init=False)
    adapters: LowRank | None = field(default=None, init=False)
    stream: TaskStream | None = field(default=None, init=False)
    expected_steps: int = field(default=0, init=False)
    step: int = field(default=0, init=False)
    scores: list[float] = field(default_factory=list, init=False)
    bad_dev_rows: tuple[Sequence[dict[str, Any]], int] = field(default=((), 0), init=False)
    stopped_at: int | None = field(default=None, init=False)
    _files: dict[Path, object] = field(default_factory=dict, init=False, repr=False)

    def __post_init__(self) -> None:
        for name in ("train_file", "dev_file", "pred_file", "pred_output_path"):
            if (path := getattr(self, name)) is not None:
                setattr(self, name, Path(path))
        raise_any(f"task {self.name!r}: {line}" for line in self._problems())

    def _problems(self) -> Iterator[str]:
        """Check the values of settings, and yield a sentence per problem."""
        yield from type_problems(
            Reader, "an object such as palm.reader.ClassifyReader(…)", reader=self.reader
        )
        yield from type_problems(Head, "an object such as palm.head.Classify(…)", head=self.head)
        if self.batch_size is None and self.max_tokens_per_batch is None:
            yield NO_BATCH_SIZE
        sizes = ("batch_size", "max_tokens_per_batch", "pred_batch_size", "gradient_accumulation_steps")
        yield from count_problems(**self._given(*sizes))
        yield from count_problems(least=0, **self._given("private_layers", "print_first_n"))
        rates = ("loss_weight", "learning_rate_factor", "head_learning_rate")
        yield from positive_problems(**self._given(*rates))
        if self.lora is not None:
            yield from lora_problems(self.lora)
            if self.private_layers:
                yield "lora: a task has adapters or private_layers, not both; remove one of them"

    def _given(self, *settings: str) -> dict[str, Any]:
        return {name: value for name in settings if (value := getattr(self, name)) is not None}

    def open_stream(
        self,
        seed: int,
        rows: Rows | None = None,
        cache: DataCache | None = None,
        devices: int | None = None,
    ) -> None:
        """Encode the training file and start at its first batch; steps are planned later (see `expect`).

        Args:
            seed: the run's `random_seed`, for a task without its own seed.
            rows: the file's rows, if they are encoded already.
            cache: the cache of encoded rows; None for no cache.
            devices: number of devices that train; the number of processes by default.

        Raises:
            DataError: a row cannot be used, or there are no rows.
            TrainingError: too few rows for one step.
        """
        assert self.train_file is not None
        self._files = {self.train_file: file_facts(self.train_file)}
        if self.print_first_n > 0:
            self._log_first_rows(self.train_file)
        if rows is None:
            rows = training_rows(self.reader, self.train_file, cache)
        if len(self.head.targets_attr) == 1 and (target := next(iter(self.head.targets_attr))) in rows:
            self.head.count_labels(rows[target].values)
        self.stream = self._stream(rows, seed if self.seed is None else self.seed, devices or world_size())
        # A task that gets data a second time is reset.
        self.expected_steps = 0
        self.step = 0
        self.scores = []
        self.stopped_at = None

    def warn_of_changed_files(self) -> None:
        """Warn if the training file has changed since training began or the last warning."""
        for file, before in self._files.items():
            if (now := file_facts(file)) != before:
                self._files[file] = now
                logger.warning(
                    "%s: changed during training, which continues with the rows read before; the SHA-256 in "
                    "saved models is that of the new file",
                    file,
                )

    def _stream(self, rows: Rows, seed: int, devices: int) -> TaskStream:
        stream = TaskStream(
            self.name,
            self.reader,
            rows,
            batch_size=self.batch_size,
            max_tokens_per_batch=self.max_tokens_per_batch,
            seed=seed,
            shuffle=self.shuffle,
            rank=rank(),
            world_size=devices,
            copies=self.head.copies,
        )
        batches = stream.steps_per_epoch
        if batches < self.gradient_accumulation_steps:
            raise TrainingError(
                f"task {self.name!r}: its rows fill only {batches} batches, too few for one step; set "
                f"gradient_accumulation_steps (now {self.gradient_accumulation_steps}) to {batches} or less, "
                "or add data"
            )
        return stream

    def _log_first_rows(self, path: Path) -> None:
        self.reader.bad_rows = BadRows(path, self.reader.on_bad_row)  # reported when the file is encoded
        examples = list(islice(self.reader.read(path, with_targets=True), self.print_first_n))
        rows = self.reader.encode(examples, with_targets=True)
        self.reader.bad_rows = None
        for number, example in enumerate(examples):
            logger.info("%s: example %d: %s", self.name, number, example)
            for row in range(len(rows)):
                if int(rows["example"][row]) == number:
                    fields = {name: column[row].tolist() for name, column in rows.columns.items()}
                    logger.info("%s: row %d: %s", self.name, row, fields)

    @property
    def loaded_stream(self) -> TaskStream:
        """`stream`, after the training data has been loaded."""
        assert self.stream is not None, "the training data is not loaded"
        return self.stream

    @property
    def metric_names(self) -> Sequence[str]:
        """Names of the given metrics, or those of the head."""
        return self.head.metrics if self.metrics is None else self.metrics

    @property
    def rows_per_prediction(self) -> int:
        """Average number of rows per prediction step."""
        return self.pred_batch_size or self.batch_size or PREDICTION_ROWS

    @property
    def done(self) -> bool:
        """True if it has had its planned steps or was finished early."""
        # Not `==`: a finished target is still drawn until the last one is finished.
        return self.step >= self.expected_steps or self.stopped_at is not None

    @property
    def steps_per_epoch(self) -> int:
        """Full steps in one pass over its training rows."""
        return self.loaded_stream.steps_per_epoch // self.gradient_accumulation_steps

    @property
    def epoch(self) -> int:
        """The epoch of its last step, from 0."""
        return max(self.step - 1, 0) // self.steps_per_epoch

    def rows_after(self, step: int) -> tuple[int, int]:
        """Return the number of its training rows, and of rows trained on in `step` steps, with repeats."""
        stream = self.loaded_stream
        return len(stream.rows), stream.rows_before(step * self.gradient_accumulation_steps)

    def batches(self, step: int) -> list[Tensors]:
        """Return the batches of step number `step`, counted from 0."""
        first = step * self.gradient_accumulation_steps
        return [self.loaded_stream.batch(first + k) for k in range(self.gradient_accumulation_steps)]

    def progress(self, step: int | None = None) -> TaskProgress:
        """Return its progress after `step` steps, by default the present number, for a mixing strategy."""
        return TaskProgress(
            name=self.name,
            mix_ratio=self.mix_ratio,
            rows=len(self.loaded_stream.rows),
            steps_per_epoch=self.steps_per_epoch,
            is_target=self.is_target,
            step=self.step if step is None else step,
            expected_steps=self.expected_steps,
            scores=tuple(self.scores),
            share_rows_with=self.share_rows_with,
        )

    def expect(self, steps: int) -> None:
        """Set its number of planned steps.

        Raises:
            TrainingError: a target would have no steps.
        """
        if self.is_target and steps == 0:
            raise TrainingError(
                f"task {self.name!r} would get no steps; increase num_epochs, max_steps, "
                f"or its mix_ratio (now {self.mix_ratio})"
            )
        self.expected_steps = steps
        if self.is_target:
            logger.info("%s: expected train steps %d.", self.name, steps)


def wiring_problems(task: Task, backbone: Backbone, for_train: bool = True) -> list[str]:
    """Check that a task's reader, backbone and head fit together; return a sentence per problem."""
    reader = task.reader
    head = task.head
    features = {**reader.outputs_attr, **backbone.outputs_attr}
    wanted = head.targets_attr if for_train else {}
    given = reader.targets_attr
    # If the loss needs another kind of label, name the setting that produces it.
    types = {LABEL_TYPES[name] for name in LABEL_TYPES.keys() & wanted.keys() - given.keys()}
    hint = f"; set label_type: {types.pop()}" if types and "label_type" in reader.settings else ""
    if "label_probs" in given and "soft_labels" in head.settings:
        hint = f"{hint}, or the head's soft_labels: True"
    found = [
        *mismatches("backbone", backbone.inputs_attr, "reader", reader.outputs_attr),
        *mismatches("head", head.inputs_attr, "backbone", features),
        *(f"{line}{hint}" for line in mismatches("head's loss", wanted, "reader", given)),
    ]
    found += _size_problems(reader, backbone)
    if task.dev_file is not None:
        found += metric_problems(task.metric_names, reader.gold_names)
    return [f"task {task.name!r}: {line}" for line in found]


def _size_problems(reader: Reader, backbone: Backbone) -> list[str]:
    """Check that the backbone's tables have a row for every token and every position."""
    found = []
    rows = backbone.settings.get("vocab_size")
    tokens = reader.vocab_size
    if rows is not None and tokens > rows:
        found.append(
            f"the vocabulary {str(reader.vocab_path)!r} has {tokens} entries, the backbone's embedding "
            f"table only {rows} rows (vocab_size); use the vocabulary of the backbone"
        )
    longest = backbone.max_tokens
    length = reader.settings.get("max_seq_len")
    if longest is not None and length is not None and length > longest:
        found.append(
            f"max_seq_len is {length}, the backbone's position table ends at {longest} "
            f"(max_position_embeddings); set max_seq_len to {longest} or less"
        )
    return found


LABEL_TYPES = {"label_ids": "class", "label_values": "real", "label_probs": "soft"}
"""Name of the labels in a batch -> the reader's `label_type` that produces them."""
