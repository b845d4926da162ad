"""The setting `effort`: rate, batches, warm-up and length of a run, chosen from its rows and its encoder."""

from __future__ import annotations

import math
from contextlib import suppress
from dataclasses import dataclass
from itertools import islice
from typing import Any, Literal, get_args

from palm.config import Config
from palm.controller.plan import Plan, TaskPlan, plan
from palm.core.errors import PalmError

Effort = Literal["quick", "normal", "best"]

LENGTHS: dict[str, tuple[int, int]] = {"quick": (100, 1), "normal": (300, 3), "best": (600, 8)}
"""Effort -> the least updates of the main task, and the least passes over its rows.

With few rows it is updates that decide, with many rows passes.
"""

PRETRAINED_RATES = ((384, 2e-4), (512, 1e-4), (768, 5e-5), (math.inf, 2e-5))
"""Width up to which a pretrained encoder is trained at a rate; measured for 384, published from 768 on."""

RANDOM_RATES = ((128, 3e-3), (384, 1e-3), (768, 3e-4), (math.inf, 1e-4))
"""The same of random weights; measured for 64 and 384."""

NARROW = 384
FEW_UPDATES = 150
FEW_FACTOR = 1.5
"""With fewer updates, a narrow pretrained encoder needs so many times the rate: measured for 60 and 240."""

MOST_EPOCHS = 100
MANY_ROWS = 5_000
"""From here on a batch has twice the rows."""

COUNTED_ROWS = 20_000
"""Rows after which counting ends: from there on, the least passes decide."""

EVALUATIONS = 10
"""Evaluations of a run that has more passes than that."""

INSTEAD = {
    "learning_rate": ("learning_rate",),
    "warmup_proportion": ("warmup_proportion",),
    "num_epochs": ("num_epochs", "epoch", "max_steps"),
    "batch_size": ("batch_size", "max_tokens_per_batch"),
    "eval_every_epoch": ("eval_every_epoch", "eval_every_n_steps"),
    "eval_every_n_steps": ("eval_every_epoch", "eval_every_n_steps"),
}
"""Setting -> those of the user's with which it is not chosen."""

Choice = dict[str, tuple[Any, str]]
"""Setting -> the value that is chosen, and why."""


@dataclass(frozen=True)
class RunFacts:
    """What a recipe depends on.

    Args:
        rows: training rows of the main task; None where they are not known.
        width: of the encoder; None where it is not known.
        is_pretrained: whether the encoder starts from weights.
        is_evaluated: whether a task has a dev_file.
    """

    rows: int | None = None
    width: int | None = None
    is_pretrained: bool = True
    is_evaluated: bool = False


def recipe(effort: Effort, facts: RunFacts) -> Choice:
    """Choose how to train; docs/optimization.md has what the choices are worth."""
    rows = COUNTED_ROWS if facts.rows is None else max(1, facts.rows)
    batch = 32 if rows >= MANY_ROWS else 16
    updates, passes = LENGTHS[effort]
    per_epoch = math.ceil(rows / batch)
    epochs = min(max(passes, math.ceil(updates / per_epoch)), MOST_EPOCHS)
    width = 768 if facts.width is None else facts.width
    rates = PRETRAINED_RATES if facts.is_pretrained else RANDOM_RATES
    rate = next(rate for most, rate in rates if width <= most)
    encoder = f"{'pretrained' if facts.is_pretrained else 'random'} weights, {width} wide"
    if facts.is_pretrained and width <= NARROW and epochs * per_epoch < FEW_UPDATES:
        rate *= FEW_FACTOR
        encoder += f", {epochs * per_epoch} updates"
    many = f"{COUNTED_ROWS} rows or more" if rows >= COUNTED_ROWS else f"{rows} rows"
    chosen: Choice = {
        "learning_rate": (rate, encoder),
        "warmup_proportion": (0.1, "a rise keeps high rates from doing harm"),
        "batch_size": (batch, many),
        "num_epochs": (epochs, f"{many}: {updates} updates and {passes} passes at least"),
    }
    if facts.is_evaluated and epochs > EVALUATIONS:
        why = f"{EVALUATIONS} evaluations, not {epochs}"
        chosen["eval_every_epoch"] = (False, why)
        chosen["eval_every_n_steps"] = (math.ceil(epochs * per_epoch / EVALUATIONS), why)
    return chosen


def choose_by_effort(config: Config) -> None:
    """Enter what `effort` chooses into a configuration, as the weakest of its settings.

    Raises:
        ConfigError: the configuration has mistakes.
    """
    given = config.value("effort")
    if given is None or given.value not in get_args(Effort):
        return
    _enter(config, given.value, RunFacts())  # so that the configuration is whole
    _enter(config, given.value, facts_of(plan(config, for_train=True)))


def _enter(config: Config, effort: Effort, facts: RunFacts) -> None:
    chosen = {
        name: (value, f"effort {effort}: {why}") for name, (value, why) in recipe(effort, facts).items()
    }
    per_task = {"batch_size": chosen.pop("batch_size")}
    for scope, settings in ((None, chosen), *((task, per_task) for task in config.tasks)):
        # What was chosen before is taken back first, so that `place` finds only what the user has set.
        config.choose({}, scope)
        free = [name for name in settings if all(config.place(e, scope) is None for e in INSTEAD[name])]
        config.choose({name: settings[name] for name in free}, scope)


def facts_of(planned: Plan) -> RunFacts:
    """Look at what a recipe depends on."""
    tags = planned.settings.get("target_tag") or [1] * len(planned.tasks)
    main = next((task for task, tag in zip(planned.tasks, tags, strict=True) if tag), None)
    starts = (planned.settings.get("pretrain_path"), planned.settings.get("start_from"))
    return RunFacts(
        rows=None if main is None else _rows(main),
        width=planned.backbone[1].get("hidden_size", main and main.head[1].get("hidden_size")),
        is_pretrained=any(start is not None for start in starts),
        is_evaluated=any(task.task.get("dev_file") is not None for task in planned.tasks),
    )


def _rows(task: TaskPlan) -> int | None:
    with suppress(PalmError):  # the run will report it
        return sum(1 for _ in islice(task.examples(task.task["train_file"]), COUNTED_ROWS))
    return None
