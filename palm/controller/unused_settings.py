"""Settings of a configuration without an effect on the run, reported before it starts."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from typing import Any

from palm.config import Config
from palm.controller.plan import TaskPlan, place_of
from palm.core.errors import PalmError
from palm.reader import EmbeddingReader
from palm.reader.tables.files import is_data
from palm.reader.text.labels import Labels

Settings = Mapping[str, Any]


def ineffective_settings(config: Config, settings: Settings, tasks: Sequence[TaskPlan]) -> Iterator[str]:
    """Yield a line with the remedy for every given setting that has no effect."""
    is_evaluated = any(task.task.get("dev_file") is not None for task in tasks)
    for name, why in _of_run(settings, is_evaluated):
        yield f"{place_of(config, name)} has no effect: {why}"
    for task in tasks:
        for name, why in _of_task(task):
            yield f"{place_of(config, name, task.name)} {why}"


def _of_run(settings: Settings, is_evaluated: bool) -> Iterator[tuple[str, str]]:
    is_saved = (
        max(settings.get("save_every_n_steps", -1), settings.get("save_infermodel_every_n_steps", -1)) > 0
    )
    decay = settings.get("ema_decay", 0)
    if settings.get("eval_every_n_steps", -1) > 0 and not is_evaluated:
        yield "eval_every_n_steps", "no task has a dev_file; give one, or leave it out"
    if decay > 0 and not settings.get("use_ema"):
        yield "ema_decay", "use_ema is off; set use_ema: True, or leave it out"
    if settings.get("use_ema") and not decay:
        yield "use_ema", "ema_decay is 0, so averages are the weights; set it, for instance to 0.999"
    if settings.get("keep_last_n", -1) > 0 and not is_saved:
        yield "keep_last_n", "nothing is saved during training; set save_every_n_steps, or leave it out"
    if "early_stopping_by" in settings and settings.get("early_stopping_patience", -1) <= 0:
        yield "early_stopping_by", "early_stopping_patience is off; set it, or leave this out"
    if "data_cache" in settings and settings.get("use_data_cache") is False:
        yield "data_cache", "use_data_cache is off; leave one of them out"


def _of_task(task: TaskPlan) -> Iterator[tuple[str, str]]:
    yield from _of_components(task)
    own = task.task
    for name, value in (("metrics", own.get("metrics")), ("calibrate", task.head[1].get("calibrate"))):
        if value and own.get("dev_file") is None:
            yield name, f"has no effect: task {task.name!r} has no dev_file; give one, or leave it out"
    if own.get("pred_output_path") is not None and own.get("pred_file") is None:
        yield "pred_output_path", f"has no effect: task {task.name!r} has no pred_file; give one"
    if own.get("pred_file") is not None and not is_data(own["pred_file"]):
        yield "pred_file", f"does not exist: {own['pred_file']}; training does not need it, prediction will"
    yield from _of_labels(task)


def _of_components(task: TaskPlan) -> Iterator[tuple[str, str]]:
    reader = task.reader[1]
    if reader.get("label_type") in ("real", "count") and "n_classes" in reader:
        yield "n_classes", f"has no effect: labels of task {task.name!r} are numbers; leave it out"
    if task.reader[0] is EmbeddingReader and task.head[1].get("learning_strategy") != "similarity":
        yield from _of_pairs(task)
    for name, reason in task.reader[0].ignored_settings.items():
        if reader.get(name):
            yield name, f"has no effect on task {task.name!r}: {reason}; leave it out"
    head = task.head[1]
    if head.get("crf_learning_rate_factor", 1) != 1 and not head.get("use_crf"):
        yield "crf_learning_rate_factor", "has no effect: use_crf is off; set use_crf: True, or leave it out"


def _of_pairs(task: TaskPlan) -> Iterator[tuple[str, str]]:
    if task.reader[1].get("label_type") is not None:
        why = "every pair counts as positive; set learning_strategy: similarity"
        yield "label_type", f"has no effect on task {task.name!r}: {why}"
    if task.task.get("batch_size") == 1:
        yield "batch_size", "is 1: a pair without its own negatives has none, so nothing is learned; raise it"


def _of_labels(task: TaskPlan) -> Iterator[tuple[str, str]]:
    reader = task.reader[1]
    named = None
    if reader.get("label_map") is not None and reader.get("n_classes") is not None:
        with suppress(PalmError):  # the reader will report it
            named = len(Labels(None, reader["label_map"]).names)
    if named is not None and named < reader["n_classes"]:
        yield (
            "label_map",
            f"names {named} labels, but n_classes of task {task.name!r} is {reader['n_classes']}; add the "
            "missing labels, or leave n_classes out",
        )
