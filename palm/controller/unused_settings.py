"""Settings of a configuration that change nothing in a run, told before it starts."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import suppress
from typing import Any

from palm.config import Config
from palm.controller.plan import TaskPlan, place_of
from palm.core.errors import PalmError
from palm.reader.text.labels import Labels


def without_effect(config: Config, settings: dict[str, Any], tasks: Sequence[TaskPlan]) -> Iterator[str]:
    """A line for every setting that the user gave and nothing uses, with the remedy."""
    evaluated = any(task.task.get("dev_file") is not None for task in tasks)
    saves = any(
        settings.get(name, -1) > 0 for name in ("save_every_n_steps", "save_infermodel_every_n_steps")
    )
    idle = []
    if settings.get("eval_every_n_steps", -1) > 0 and not evaluated:
        idle.append(("eval_every_n_steps", "no task has a dev_file; give one, or leave it out"))
    if settings.get("ema_decay", 0) > 0 and not settings.get("use_ema"):
        idle.append(("ema_decay", "use_ema is off; set use_ema: True, or leave it out"))
    if settings.get("use_ema") and not settings.get("ema_decay"):
        idle.append(("use_ema", "ema_decay is 0, so averages are the weights; set it, for instance to 0.999"))
    if settings.get("keep_last_n", -1) > 0 and not saves:
        idle.append(("keep_last_n", "nothing is saved on the way; set save_every_n_steps, or leave it out"))
    if "early_stopping_by" in settings and settings.get("early_stopping_patience", -1) <= 0:
        idle.append(("early_stopping_by", "early_stopping_patience is off; set it, or leave this out"))
    if "data_cache" in settings and settings.get("use_data_cache") is False:
        idle.append(("data_cache", "use_data_cache is off; leave one of them out"))
    for name, why in idle:
        yield f"{place_of(config, name)} has no effect: {why}"
    for task in tasks:
        for name, why in _of_task(task):
            yield f"{place_of(config, name, task.name)} {why}"


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
    named = None
    if reader.get("label_map") is not None and reader.get("n_classes") is not None:
        with suppress(PalmError):  # the reader will say what is wrong
            named = len(Labels(None, reader["label_map"]).names)
    if named is not None and named < reader["n_classes"]:
        yield (
            "label_map",
            f"names {named} labels, n_classes of task {task.name!r} is {reader['n_classes']}; name the rest, "
            "or leave n_classes out",
        )
