"""The setting `effort`: learning rate, batches, warm-up and length of a run, chosen by rows and encoder."""

from __future__ import annotations

import math
import os
from contextlib import suppress
from dataclasses import dataclass
from inspect import signature
from itertools import islice
from typing import Any, Literal, get_args

from palm.backbone import BACKBONES
from palm.backbone.base import Backbone
from palm.config import Config
from palm.config.run import CHOSEN, RunConfig, TaskConfig
from palm.config.settings import RunSettings
from palm.controller.resolve import resolve
from palm.controller.rows import choose_rows
from palm.core.device import device_of
from palm.core.errors import PalmError
from palm.core.group import count_devices, launched_processes
from palm.optimizer.lr_sched import LR_SCHEDULES
from palm.reader import READERS

Effort = Literal["quick", "normal", "best"]

LENGTHS: dict[str, tuple[int, int]] = {"quick": (100, 1), "normal": (300, 3), "best": (600, 8)}
"""Effort -> minimum number of updates of the main task, and of passes over its rows.

With few rows the updates are decisive, with many rows the passes.
"""

PRETRAINED_RATES = ((384, 2e-4), (512, 1e-4), (768, 5e-5), (math.inf, 2e-5))
"""Largest width, and the rate for pretrained encoders up to it; measured for 384, published from 768 on."""

RANDOM_RATES = ((128, 3e-3), (384, 1e-3), (768, 3e-4), (math.inf, 1e-4))
"""The same for random weights; measured for 64 and 384."""

NARROWER = 1.5
"""Exponent by which the rate of pretrained encoders rises below 384, from a few runs with 64 and 128."""

NARROWEST = 64
"""Narrower encoders have the rate of this width."""

NARROW = 384
FEW_UPDATES = 150
FEW_FACTOR = 1.5
"""Factor on the rate of a narrow pretrained encoder with fewer updates; measured for 60 and 240."""

FEW_ROWS = 300
"""Rows up to which the embeddings of a pretrained encoder rest: so few rows have few of its words, and the
others stay where they are. Measured for 384 wide and 50 rows, where it also saves a sixth of the time."""

HEAD_FACTOR = 10
"""Factor on the rate of the heads if there are several tasks: the others move the encoder between two steps
of a task, and its head must follow. Measured with a new encoder of width 64 and a pretrained one of 384."""

NARROW_HEAD_FACTOR = 3
"""The same for one task on an encoder of at most `NARROWEST`, as `palm init --from` makes. Measured there: 5
and 10 gain more for some heads, and lose points for others. At 384, a higher rate does not help one task."""

MOST_EPOCHS = 100
MANY_ROWS = 5_000
"""Number of rows from which a batch has twice as many."""

COUNTED_ROWS = 20_000
"""Rows after which counting stops, because the minimum number of passes is decisive from there on."""

EVALUATIONS = 10
"""Number of evaluations of a run with more passes than this."""

INSTEAD = {
    "learning_rate": ("learning_rate",),
    "head_learning_rate": ("head_learning_rate", "learning_rate", "backbone_learning_rate"),
    "warmup_proportion": ("warmup_proportion",),
    "freeze": ("freeze",),
    "num_epochs": ("num_epochs", "max_steps"),
    "batch_size": ("batch_size",),
    "eval_every_epoch": ("eval_every_epoch", "eval_every_n_steps"),
    "eval_every_n_steps": ("eval_every_epoch", "eval_every_n_steps"),
}
"""Setting -> settings of the user that prevent it from being chosen."""

OF_TASKS = ("batch_size", "head_learning_rate")
"""Settings that are chosen for each task."""

Choice = dict[str, tuple[Any, str]]
"""Setting -> chosen value, and the reason."""


@dataclass(frozen=True)
class RunFacts:
    """The facts that the choice depends on.

    Args:
        rows: training rows of the main task; None if unknown.
        width: width of the encoder; None if unknown.
        is_pretrained: True if the encoder starts from weights.
        can_rest: True if the embeddings can be frozen.
        is_evaluated: True if a task has a dev_file.
        has_warmup: True if the schedule has a warm-up.
        batch: rows of a step of the main task on one device, if given.
        num_epochs: passes over its rows, if given.
        max_steps: maximum number of global steps, if given.
        devices: number of devices; each has a batch of every step.
        steps_of_all: global steps per step of the main task.
        tasks: number of tasks.
    """

    rows: int | None = None
    width: int | None = None
    is_pretrained: bool = True
    can_rest: bool = False
    is_evaluated: bool = False
    has_warmup: bool = True
    batch: int | None = None
    num_epochs: float | None = None
    max_steps: int | None = None
    devices: int = 1
    steps_of_all: float = 1.0
    tasks: int = 1


def _head_factor(facts: RunFacts, width: int) -> int | None:
    if facts.tasks > 1:
        return HEAD_FACTOR
    return NARROW_HEAD_FACTOR if facts.is_pretrained and width <= NARROWEST else None


def choose_settings(effort: Effort, facts: RunFacts) -> Choice:
    """Choose training settings; docs/optimization.md reports how well they do."""
    rows = COUNTED_ROWS if facts.rows is None else max(1, facts.rows)
    batch = 32 if rows >= MANY_ROWS else max(1, min(16, rows // facts.devices))
    updates, passes = LENGTHS[effort]
    per_epoch = math.ceil(rows / ((facts.batch or batch) * facts.devices))
    epochs = min(max(passes, math.ceil(updates / per_epoch)), MOST_EPOCHS)
    width = 768 if facts.width is None else facts.width
    rates = PRETRAINED_RATES if facts.is_pretrained else RANDOM_RATES
    rate = next(rate for most, rate in rates if width <= most)
    if facts.is_pretrained and width < NARROW:
        rate = float(f"{rate * (NARROW / max(width, NARROWEST)) ** NARROWER:.2g}")
    encoder = f"{'pretrained' if facts.is_pretrained else 'random'} weights, {width} wide"
    if facts.is_pretrained and width <= NARROW and epochs * per_epoch < FEW_UPDATES:
        rate = float(f"{rate * FEW_FACTOR:.2g}")
        encoder += f", {epochs * per_epoch} updates"
    counted = f"{rows} rows{' or more' * (rows >= COUNTED_ROWS)}"
    many = "an unknown number of rows" if facts.rows is None else counted
    chosen: Choice = {
        "learning_rate": (rate, encoder),
        "batch_size": (batch, many),
        "num_epochs": (epochs, f"{many}: about {updates} updates, at least {passes} passes"),
    }
    if factor := _head_factor(facts, width):
        why = f"{facts.tasks} tasks: a head follows an encoder that the others move"
        chosen["head_learning_rate"] = (float(f"{factor * rate:.2g}"), why if facts.tasks > 1 else encoder)
    if facts.can_rest and facts.is_pretrained and width >= NARROW and rows <= FEW_ROWS:
        chosen["freeze"] = ("embeddings", f"{rows} rows have few of the words")
    if facts.has_warmup:
        chosen["warmup_proportion"] = (0.1, "a warm-up keeps high rates from doing harm")
    steps_of_epoch = per_epoch * facts.steps_of_all
    steps = (facts.num_epochs or epochs) * steps_of_epoch
    steps = min(steps, facts.max_steps or math.inf)
    if facts.is_evaluated and steps > EVALUATIONS * steps_of_epoch:
        why = f"{EVALUATIONS} evaluations instead of {math.ceil(steps / steps_of_epoch)}"
        chosen["eval_every_epoch"] = (False, why)
        chosen["eval_every_n_steps"] = (math.ceil(steps / EVALUATIONS), why)
    return chosen


def choose_by_effort(config: Config, devices: int | None = None) -> None:
    """Add the choices of `effort` to a configuration, as its weakest settings.

    Without a learning rate, `effort` is `normal`. `devices` is as for `facts_of`.

    Raises:
        ConfigError: the configuration has problems.
    """
    given = config.value("effort")
    if given is None and config.place("learning_rate") is None:
        effort: Any = "normal"
    elif given is None or given.value not in get_args(Effort):
        return
    else:
        effort = given.value
    # With all settings, so that it can be resolved.
    provisional = config.provisional()
    _apply(provisional, effort, RunFacts())
    _apply(config, effort, facts_of(choose_rows(resolve(provisional), for_train=True), devices))


def _apply(config: Config, effort: Effort, facts: RunFacts) -> None:
    chosen = choose_settings(effort, facts)
    chosen = {name: (value, f"effort {effort}: {why}") for name, (value, why) in chosen.items()}
    per_task = {name: chosen.pop(name) for name in OF_TASKS if name in chosen}
    # The run's settings last: they would count as given for the tasks.
    for scope, settings in (*((task, per_task) for task in config.tasks), (None, chosen)):
        free = [name for name in settings if all(config.place(e, scope) is None for e in INSTEAD[name])]
        config.choose({name: settings[name] for name in free}, scope)


def facts_of(run: RunConfig, devices: int | None = None) -> RunFacts:
    """Return the facts about a run that the choice depends on; values of an earlier choice are not given.

    `devices` is the number of devices; None for those of this program's processes.
    """
    settings = run.settings
    main = next((task for task in run.tasks if task.settings.is_target), None)
    width = run.backbone.settings.get("hidden_size", main and main.head.settings.get("hidden_size"))
    batch = None
    if (
        main is not None
        and (own := main.settings.batch_size)
        and not _is_chosen(run, "batch_size", main.name)
    ):
        batch = own * main.settings.gradient_accumulation_steps
    return RunFacts(
        rows=None if main is None else _rows(main),
        width=width,
        is_pretrained=settings.pretrain_path is not None or settings.start_from is not None,
        can_rest=main is not None and main.head.name != "mlm" and _has_layers(run.backbone.name),
        is_evaluated=any(task.settings.is_evaluated for task in run.tasks),
        has_warmup="warmup_steps" in signature(LR_SCHEDULES[run.schedule.name]).parameters,
        batch=batch,
        num_epochs=None if _is_chosen(run, "num_epochs") else settings.num_epochs,
        max_steps=settings.max_steps,
        devices=_devices(settings) if devices is None else devices,
        steps_of_all=1.0 if main is None else _steps_of_all(run, main),
        tasks=len(run.tasks),
    )


def _has_layers(backbone: str) -> bool:
    """Check whether an encoder defines its layers, as freezing its embeddings needs."""
    return BACKBONES[backbone].parameter_layers is not Backbone.parameter_layers


def _is_chosen(run: RunConfig, name: str, task: str | None = None) -> bool:
    return CHOSEN.match(run.place(name, task) or "") is not None


def _devices(settings: RunSettings) -> int:
    # Of a program that a launcher has started already, or else of the processes that the run will start.
    if {"RANK", "WORLD_SIZE"} <= os.environ.keys():
        return launched_processes()
    return count_devices(device_of(settings.use_gpu, settings.device), settings.num_devices)


def _steps_of_all(run: RunConfig, main: TaskConfig) -> float:
    """Estimate the global steps per step of the main task, exactly for `mixing: mix_ratio`."""
    drawn = [task.settings.mix_ratio for task in run.tasks if task.settings.share_rows_with is None]
    by_ratio = run.settings.mixing == "mix_ratio" and main.settings.mix_ratio > 0
    steps = sum(drawn) / main.settings.mix_ratio if by_ratio else len(drawn)
    together = run.settings.tasks_per_step
    return max(1.0, steps / (len(drawn) if together == "all" else max(1, together)))  # 0 is refused later


def _rows(task: TaskConfig) -> int | None:
    path = task.settings.train_file
    with suppress(PalmError):  # the run will report it
        if path is not None:
            reader = READERS[task.reader.name](**task.reader.settings)
            return sum(1 for _ in islice(reader.read(path, with_targets=True), COUNTED_ROWS))
    return None
