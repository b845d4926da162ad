"""Settings of a configuration that change nothing in a run, told before it starts."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import suppress
from typing import Any

from palm.config import Config
from palm.controller.plan import TaskPlan, place_of
from palm.core.errors import PalmError
from palm.reader.text.labels import Labels

WHY = {
    "eval_every_n_steps": "no task has a dev_file; give one, or leave it out",
    "ema_decay": "use_ema is off; set use_ema: True, or leave it out",
    "use_ema": "ema_decay is 0, so averages are the weights; set it, for instance to 0.999",
    "keep_last_n": "nothing is saved on the way; set save_every_n_steps, or leave it out",
    "early_stopping_by": "early_stopping_patience is off; set it, or leave this out",
    "data_cache": "use_data_cache is off; leave one of them out",
}
"""Global setting -> the reason why it has no effect where it has none, and the remedy."""


def without_effect(config: Config, settings: dict[str, Any], tasks: Sequence[TaskPlan]) -> Iterator[str]:
    """Yield a line for every setting that the user gave and nothing uses, with the remedy."""
    is_evaluated = any(task.task.get("dev_file") is not None for task in tasks)
    for name in _unused_by_run(settings, is_evaluated):
        yield f"{place_of(config, name)} has no effect: {WHY[name]}"
    for task in tasks:
        for name, why in _of_task(task):
            yield f"{place_of(config, name, task.name)} {why}"


def _unused_by_run(settings: dict[str, Any], is_evaluated: bool) -> list[str]:
    """Return the global settings that have no effect."""
    steps = ("eval_every_n_steps", "save_every_n_steps", "save_infermodel_every_n_steps", "keep_last_n")
    above_0 = {
        name for name in (*steps, "ema_decay", "early_stopping_patience") if settings.get(name, -1) > 0
    }
    saves = above_0 & {"save_every_n_steps", "save_infermodel_every_n_steps"}
    uses_ema = settings.get("use_ema", False)
    unused = {
        "eval_every_n_steps": "eval_every_n_steps" in above_0 and not is_evaluated,
        "ema_decay": "ema_decay" in above_0 and not uses_ema,
        "use_ema": uses_ema and "ema_decay" not in above_0,
        "keep_last_n": "keep_last_n" in above_0 and not saves,
        "early_stopping_by": "early_stopping_by" in settings and "early_stopping_patience" not in above_0,
        "data_cache": "data_cache" in settings and settings.get("use_data_cache") is False,
    }
    return [name for name in unused if unused[name]]


def _of_task(task: TaskPlan) -> Iterator[tuple[str, str]]:
    reader = task.reader[1]
    own = task.task
    if reader.get("label_type") == "real" and "n_classes" in reader:
        yield "n_classes", f"has no effect: labels of task {task.name!r} are real numbers; leave it out"
    for name, reason in task.reader[0].ignored_settings.items():
        if reader.get(name):
            yield name, f"has no effect on task {task.name!r}: {reason}; leave it out"
    head = task.head[1]
    if head.get("crf_learning_rate_factor", 1) != 1 and not head.get("use_crf"):
        yield "crf_learning_rate_factor", "has no effect: use_crf is off; set use_crf: True, or leave it out"
    if "metrics" in own and own.get("dev_file") is None:
        yield "metrics", f"has no effect: task {task.name!r} has no dev_file; give one, or leave them out"
    if own.get("pred_file") is not None and not own["pred_file"].is_file():
        yield "pred_file", f"is not there: {own['pred_file']}; training does not need it, prediction will"
    yield from _label_map_too_short(task)


def _label_map_too_short(task: TaskPlan) -> Iterator[tuple[str, str]]:
    reader = task.reader[1]
    count = reader.get("n_classes")
    if reader.get("label_map") is None or count is None:
        return
    with suppress(PalmError):  # the reader reports what is wrong with it
        named = len(Labels(None, reader["label_map"]).names)
        if named < count:
            yield (
                "label_map",
                f"names {named} labels, n_classes of task {task.name!r} is {count}; name the rest, "
                "or leave n_classes out",
            )
