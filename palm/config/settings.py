"""Settings of a run and of a task that do not belong to a component: PaddlePALM's tables of parameters."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any, Literal

from palm.config.conversion import DataPath, ModelPath
from palm.core.component import count_problems, positive_problems, raise_any, text_problem
from palm.core.device import DeviceName, Setting
from palm.core.errors import Problem, about
from palm.core.group import DEFAULT_TIMEOUT
from palm.core.logging import Progress

TasksPerStep = int | Literal["all"]
"""Number of distinct tasks that a step trains."""

NEEDED = {"needed": True}
"""Marks a setting that training needs."""

PER_TASK = {"per_task": True}
"""Marks a list with one value per task."""

OF_SEVERAL = {"of_several": True}
"""Marks a setting that needs several tasks."""

OF_WHOLE_RUN = {"of_whole_run": True}
"""Marks a setting that stages may not change."""

NO_RESULT = {"no_result": True}
"""Marks a setting that does not affect training."""

NOT_WRITTEN = {"not_written": True}
"""Marks a setting of a task that a configuration gives in a list for all tasks."""

NO_BATCH_SIZE = "batch_size is missing; set the number of rows per step"


@dataclass(frozen=True, kw_only=True)
class RunSettings:
    """Global settings.

    Args:
        task_instance: the tasks to train or predict; each has a file `<task>.yaml` in the task folder.
        mixing: the strategy that samples the task of each step: mix_ratio, proportional, temperature,
            round_robin, or the dotted path of a class.
        tasks_per_step: number of distinct tasks that are trained together in a step, or all.
        balance: how the tasks of one step are weighted: uncertainty, or the dotted path of a class; by
            default, their losses are summed.
        mix_ratio: how often each task is drawn, relative to the others; 1.0 each by default.
        target_tag: 1 for a target task, 0 for an auxiliary one, per task; all are targets by default.
        task_reuse_tag: tasks with equal tags share one head; no heads are shared by default.
        backbone: the encoder: bert, roberta, distilbert, electra or ernie, or the dotted path of a class;
            auto for the one in pretrain_path, with its sizes and vocabulary.
        backbone_config_path: a JSON file with the backbone's settings.
        pretrain_path: pretrained weights to start from: a directory, or a model on the Hugging Face Hub
            (owner/name, owner/name@revision).
        start_from: weights to start from, encoder and heads, instead of pretrained ones: a checkpoint, a
            task's saved model, or the weights of a stage.
        reset: tasks whose heads are initialized in spite of start_from, or heads for all tasks.
        stages: consecutive parts of the run, each with its own tasks and settings; one part by default.
        save_path: the folder for checkpoints and the targets' models.
        num_epochs: passes over the main task's training data (the main task is the first target); by default
            as many as max_steps allows.
        max_steps: maximum number of optimizer steps; no limit by default.
        effort: quick, normal or best, to have learning rate, batches, warm-up, passes and evaluations chosen
            by rows and encoder; settings that are given take precedence. Without a learning_rate: normal.
        optimizer: adam (or adamw), adamwdl or lamb, or the dotted path of a class.
        lr_scheduler: the learning-rate schedule: linear_warmup_decay, linear, cosine, constant, noam,
            or the dotted path of a class.
        warmup_proportion: fraction of all steps in which the learning rate rises from 0.
        use_ema: save, evaluate and predict with moving averages of the weights.
        ema_decay: decay of these averages, below 1; at 0 they are the weights themselves.
        print_every_n_steps: global steps between log lines.
        progress: how progress is shown: bar, lines, none, or auto for a bar on a terminal and in a notebook
            and lines elsewhere.
        quiet: show only warnings.
        verbose: also show debugging messages.
        loggers: where curves and settings are also sent: tensorboard, wandb.
        save_every_n_steps: global steps between checkpoints; -1: none. By default, one at the end of an epoch
            of the main task, at most 10 in a run, of which the newest is kept.
        keep_last_n: number of checkpoints, and of intermediate models of each target, to keep; -1: all.
        eval_every_n_steps: global steps between evaluations of the tasks with a dev_file; -1: none.
        eval_every_epoch: evaluate them at the end of every epoch of the main task.
        early_stopping_patience: evaluations without improvement after which a target counts as finished;
            -1: never.
        save_infermodel_every_n_steps: steps of a target between its inference models; -1: none.
        resume: a checkpoint to resume from, or auto for the newest complete one of this run under save_path.
        overwrite: move an earlier run to <save_path>.previous, unless resume continues that run.
        data_cache: the folder for encoded training files; by default the environment variable
            PALM_DATA_CACHE, or `palm` in the user's cache folder.
        use_data_cache: keep encoded training files for later runs; otherwise each run encodes in memory.
        use_gpu: use GPUs if available.
        device: cpu, cuda, or auto to follow use_gpu.
        num_devices: number of devices that train together, one process each; auto for all visible GPUs, or
            one CPU.
        process_group_timeout: seconds after which a process stops waiting for another one.
        precision: compute in fp32 or bf16; auto is bf16 on devices with fast bfloat16, otherwise fp32.
        deterministic: use deterministic kernels, so that a run on a GPU is reproducible bit by bit, as it
            always is on a CPU; slower on a GPU.
        activation_checkpointing: recompute activations in the backward pass instead of keeping them; uses
            less memory and more time.
        random_seed: seed of all random choices; the same seed repeats a run.
    """

    task_instance: list[str] = field(metadata=OF_WHOLE_RUN)
    mixing: str = field(default="mix_ratio", metadata=OF_SEVERAL)
    tasks_per_step: TasksPerStep = field(default=1, metadata=OF_SEVERAL)
    balance: str | None = field(default=None, metadata=OF_SEVERAL)
    mix_ratio: list[float] | None = field(default=None, metadata=PER_TASK | OF_SEVERAL)
    target_tag: list[int] | None = field(default=None, metadata=PER_TASK)
    task_reuse_tag: list[str] | None = field(default=None, metadata=PER_TASK)
    backbone: str | None = field(default=None, metadata=OF_WHOLE_RUN | NEEDED)
    backbone_config_path: Path | None = field(default=None, metadata=OF_WHOLE_RUN)
    pretrain_path: ModelPath | None = field(default=None, metadata=OF_WHOLE_RUN)
    start_from: Path | None = None
    reset: list[str] | None = None
    stages: list[dict[str, Any]] | None = field(default=None, metadata=OF_WHOLE_RUN)
    save_path: Path | None = field(default=None, metadata=OF_WHOLE_RUN | NO_RESULT | NEEDED)
    num_epochs: int | float | None = None
    max_steps: int | None = None
    effort: Literal["quick", "normal", "best"] | None = field(default=None, metadata=OF_WHOLE_RUN)
    optimizer: str = "adam"
    lr_scheduler: str = "linear_warmup_decay"
    warmup_proportion: float = 0.0
    use_ema: bool = False
    ema_decay: float = 0.0
    print_every_n_steps: int = field(default=5, metadata=NO_RESULT)
    progress: Progress = field(default="auto", metadata=OF_WHOLE_RUN | NO_RESULT)
    quiet: bool = field(default=False, metadata=OF_WHOLE_RUN | NO_RESULT)
    verbose: bool = field(default=False, metadata=OF_WHOLE_RUN | NO_RESULT)
    loggers: list[str] | None = field(default=None, metadata=NO_RESULT)
    save_every_n_steps: int | None = field(default=None, metadata=NO_RESULT)
    save_infermodel_every_n_steps: int = field(default=-1, metadata=NO_RESULT)
    keep_last_n: int = field(default=-1, metadata=NO_RESULT)
    eval_every_n_steps: int = -1
    eval_every_epoch: bool = True
    early_stopping_patience: int = -1
    resume: str | None = field(default=None, metadata=OF_WHOLE_RUN | NO_RESULT)
    overwrite: bool = field(default=False, metadata=OF_WHOLE_RUN | NO_RESULT)
    data_cache: Path | None = field(default=None, metadata=OF_WHOLE_RUN | NO_RESULT)
    use_data_cache: bool = field(default=True, metadata=OF_WHOLE_RUN | NO_RESULT)
    use_gpu: bool = field(default=True, metadata=OF_WHOLE_RUN)
    device: DeviceName = field(default="auto", metadata=OF_WHOLE_RUN)
    num_devices: int | Literal["auto"] = field(default="auto", metadata=OF_WHOLE_RUN)
    process_group_timeout: float = field(default=DEFAULT_TIMEOUT, metadata=OF_WHOLE_RUN)
    precision: Setting = "auto"
    deterministic: bool = False
    activation_checkpointing: bool = False
    random_seed: int = 1


def marked(mark: Mapping[str, bool], kind: type[Any] = RunSettings) -> list[str]:
    """Return the names of the settings with this mark."""
    return [each.name for each in fields(kind) if mark.items() <= dict(each.metadata).items()]


@dataclass(kw_only=True)
class TaskSettings:
    """Settings of a task that do not belong to its reader or its head.

    Args:
        batch_size: rows per training step on each device.
        gradient_accumulation_steps: batches per training step, if a larger `batch_size` does not fit into
            memory; the step is the same as with one batch of all their rows.
        train_file: the training data.
        dev_file: the data, with labels, on which the task is evaluated during and after training.
        metrics: names of metrics or dotted paths of classes; the first one decides which model is best. The
            default is those of the paradigm.
        pred_file: the data that `controller.pred` predicts.
        pred_output_path: the folder for predictions, `<save_path>/<task>` by default; or a file name ending
            in `.jsonl` or `.csv` to write a table.
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
        lora: the task's own low-rank adapters on linear layers of the encoder: a mapping of rank (8),
            alpha (16) and targets ([query, value]), or {from: DIR} for a directory in PEFT's format.
        where: column of the train_file -> the value, or list of values, that its rows must have; as text.
        split: parts split off the train_file, `{dev: 0.1, test: 0.1}`, as dev_file and pred_file: random and
            stratified by label, with equal texts in one part; also a `seed`, 1 by default.
        sample: number of its rows to train on, stratified by label.
        sample_per_label: number of rows of each label to train on.
    """

    batch_size: int | None = None
    gradient_accumulation_steps: int = 1
    train_file: DataPath | None = None
    dev_file: DataPath | None = None
    metrics: list[str] | None = field(default=None, metadata=NO_RESULT)
    pred_file: DataPath | None = field(default=None, metadata=NO_RESULT)
    pred_output_path: Path | None = field(default=None, metadata=NO_RESULT)
    pred_batch_size: int | None = field(default=None, metadata=NO_RESULT)
    shuffle: bool = True
    seed: int | None = None
    print_first_n: int = field(default=0, metadata=NO_RESULT)
    loss_weight: float = 1.0
    learning_rate_factor: float = 1.0
    head_learning_rate: float | None = None
    mix_ratio: float = field(default=1.0, metadata=NOT_WRITTEN)
    is_target: bool = field(default=True, metadata=NOT_WRITTEN)
    share_rows_with: str | None = None
    lora: Mapping[str, Any] | None = None
    where: dict[str, str | list[str]] | None = None
    split: dict[str, float] | None = None
    sample: int | None = None
    sample_per_label: int | None = None

    @property
    def fractions(self) -> dict[str, float]:
        """The fractions of the parts that are split off, by name."""
        return {part: fraction for part, fraction in (self.split or {}).items() if part != "seed"}

    @property
    def is_evaluated(self) -> bool:
        """True if there is data to evaluate on."""
        return self.dev_file is not None or "dev" in self.fractions

    def __post_init__(self) -> None:
        raise_any(self.problems())

    def problems(self) -> Iterator[str]:
        """Check the values, and yield a sentence for each that is wrong."""
        sizes = ("batch_size", "pred_batch_size", "gradient_accumulation_steps")
        yield from count_problems(**self._given(*sizes, "sample", "sample_per_label"))
        yield from count_problems(least=0, **self._given("print_first_n"))
        rates = ("loss_weight", "learning_rate_factor", "head_learning_rate")
        yield from positive_problems(**self._given(*rates))
        for name in ("train_file", "dev_file", "pred_output_path"):
            if (line := text_problem(getattr(self, name))) is not None:
                yield about(name, line)
        if strange := sorted(self.fractions.keys() - {"dev", "test"}):
            yield about("split", f" has {', '.join(strange)}; known: dev, test and seed")
        total = sum(self.fractions.values())
        if not (0 <= total < 1 and all(fraction > 0 for fraction in self.fractions.values())):
            text = f"split should have fractions above 0 that leave rows to train on, not {self.split!r}"
            yield Problem(text, "split")

    def _given(self, *settings: str) -> dict[str, Any]:
        return {name: value for name in settings if (value := getattr(self, name)) is not None}


@dataclass(frozen=True, kw_only=True)
class TaskParts:
    """The components of one task.

    Args:
        reader: reads its data: a name of `palm ls reader`, or the dotted path of a class.
        paradigm: its head: a name of `palm ls paradigm`, or the dotted path of a class.
    """

    reader: str
    paradigm: str


def _is_count_or_never(value: int) -> bool:
    return value >= 1 or value == -1


RANGES: dict[str, tuple[Callable[[Any], bool], str]] = {
    "num_epochs": (lambda value: 0 < value < math.inf, "above 0"),
    "max_steps": (lambda value: value >= 1, "1 or more"),
    **dict.fromkeys(
        [
            "print_every_n_steps",
            "save_every_n_steps",
            "save_infermodel_every_n_steps",
            "eval_every_n_steps",
            "early_stopping_patience",
        ],
        (_is_count_or_never, "1 or more, or -1 for never"),
    ),
    "warmup_proportion": (lambda value: 0 <= value < 1, "at least 0 and below 1"),
    "ema_decay": (lambda value: 0 <= value < 1, "at least 0 and below 1"),
    "keep_last_n": (_is_count_or_never, "1 or more, or -1 for all"),
    "num_devices": (lambda value: value == "auto" or value >= 1, "1 or more, or auto"),
    "process_group_timeout": (lambda value: value > 0, "above 0"),
    # the range of torch's generator; other programs take -1 for a new seed in every run
    "random_seed": (lambda value: 0 <= value < 2**64, "a whole number of 0 or more, and at most 64 bits"),
}
"""Setting -> a check of its value, and a description of valid values."""

SettingProblem = tuple[str, str]
"""The name of a setting and its problem; together they form a sentence."""


def setting_problems(settings: dict[str, Any], tasks: list[str]) -> list[SettingProblem]:
    """List problems of global settings: lists of the wrong length, values out of range."""
    found = []
    for name in marked(PER_TASK):
        values = settings.get(name)
        if isinstance(values, list) and len(values) != len(tasks):
            found.append((name, f"has {len(values)} entries for {len(tasks)} tasks ({', '.join(tasks)})"))
    found += _ratio_problems(settings.get("mix_ratio"), settings.get("target_tag"), tasks)
    found += _reset_problems(settings.get("reset"), settings.get("start_from"), tasks)
    found += [
        (name, f"should be {expected}, not {settings[name]!r}")
        for name, (fits, expected) in RANGES.items()
        if settings.get(name) is not None and not fits(settings[name])
    ]
    return found


def _ratio_problems(ratios: object, tags: object, tasks: list[str]) -> Iterator[SettingProblem]:
    """List problems of `target_tag` and `mix_ratio`."""
    if isinstance(tags, list):
        if set(tags) - {0, 1}:
            yield "target_tag", f"should be 1 (target) or 0 (auxiliary) for each task, not {tags!r}"
        elif 1 not in tags:
            yield "target_tag", "has no target task; give at least one task the tag 1"
    if isinstance(ratios, list):
        targets = tags if isinstance(tags, list) else [1] * len(tasks)
        for task, ratio, tag in zip(tasks, ratios, targets, strict=False):
            if not 0 <= ratio < math.inf or (tag == 1 and ratio == 0):
                least = "above 0 for a target task" if tag == 1 else "0 or more"
                yield "mix_ratio", f"of task {task!r} should be {least}, not {ratio!r}"


def _reset_problems(
    reset: Sequence[str] | None, start_from: object, tasks: list[str]
) -> Iterator[SettingProblem]:
    if strange := sorted({*(reset or ())} - {*tasks, "heads"}):
        yield "reset", f"names {', '.join(strange)}; known: heads, {', '.join(tasks)}"
    elif reset and start_from is None:
        yield "reset", "needs start_from, which is not set; leave it out"
