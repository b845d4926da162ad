"""Settings of a configuration without an effect on the run, reported before it starts."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress

from palm.config.run import RunConfig, TaskConfig
from palm.config.settings import RunSettings
from palm.core.errors import PalmError
from palm.reader import READERS
from palm.reader.tables.files import is_data
from palm.reader.text.labels import Labels


def ineffective_settings(run: RunConfig) -> Iterator[str]:
    """Yield a line with the remedy for every given setting that has no effect."""
    is_evaluated = any(task.settings.is_evaluated for task in run.tasks)
    for name, why in _of_run(run.settings, is_evaluated):
        if run.place(name) is not None:
            yield f"{run.placed(name)} has no effect: {why}"
    for task in run.tasks:
        for name, why in _of_task(task):
            if run.place(name, task.name) is not None:
                yield f"{run.placed(name, task.name)} {why}"


def _of_run(settings: RunSettings, is_evaluated: bool) -> Iterator[tuple[str, str]]:
    is_saved = max(settings.save_every_n_steps, settings.save_infermodel_every_n_steps) > 0
    if settings.eval_every_n_steps > 0 and not is_evaluated:
        yield "eval_every_n_steps", "no task has a dev_file; give one, or leave it out"
    if settings.ema_decay > 0 and not settings.use_ema:
        yield "ema_decay", "use_ema is off; set use_ema: True, or leave it out"
    if settings.use_ema and not settings.ema_decay:
        yield "use_ema", "ema_decay is 0, so averages are the weights; set it, for instance to 0.999"
    if settings.keep_last_n > 0 and not is_saved:
        yield "keep_last_n", "nothing is saved during training; set save_every_n_steps, or leave it out"
    if settings.early_stopping_patience <= 0:
        yield "early_stopping_by", "early_stopping_patience is off; set it, or leave this out"
    if not settings.use_data_cache:
        yield "data_cache", "use_data_cache is off; leave one of them out"


def _of_task(task: TaskConfig) -> Iterator[tuple[str, str]]:
    yield from _of_components(task)
    own = task.settings
    for name, value in (("metrics", own.metrics), ("calibrate", task.head.settings.get("calibrate"))):
        if value and own.dev_file is None:
            yield name, f"has no effect: task {task.name!r} has no dev_file; give one, or leave it out"
    if own.pred_output_path is not None and own.pred_file is None:
        yield "pred_output_path", f"has no effect: task {task.name!r} has no pred_file; give one"
    if own.pred_file is not None and not is_data(own.pred_file):
        yield "pred_file", f"does not exist: {own.pred_file}; training does not need it, prediction will"
    yield from _of_labels(task)


def _of_components(task: TaskConfig) -> Iterator[tuple[str, str]]:
    reader = task.reader.settings
    head = task.head.settings
    if reader.get("label_type") in ("real", "count"):
        yield "n_classes", f"has no effect: labels of task {task.name!r} are numbers; leave it out"
    if task.reader.name == "embedding" and head.get("learning_strategy") != "similarity":
        why = "every pair counts as positive; set learning_strategy: similarity"
        yield "label_type", f"has no effect on task {task.name!r}: {why}"
        if task.settings.batch_size == 1:
            yield (
                "batch_size",
                "is 1: a pair without its own negatives has none, so nothing is learned; raise it",
            )
    for name, reason in READERS[task.reader.name].ignored_settings.items():
        if reader.get(name):
            yield name, f"has no effect on task {task.name!r}: {reason}; leave it out"
    if not head.get("use_crf"):
        yield "crf_learning_rate_factor", "has no effect: use_crf is off; set use_crf: True, or leave it out"


def _of_labels(task: TaskConfig) -> Iterator[tuple[str, str]]:
    reader = task.reader.settings
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
