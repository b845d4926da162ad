"""A task of what a trainer was given: encoder, head, reader and dev data, by the rules of PaddlePALM 2.x."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from palm.core.checks import raise_any
from palm.core.errors import ConfigError, PalmError, WiringError
from palm.distributed.group import num_ranks
from palm.engine.training.task import Task, wiring_problems
from palm.reader import Reader, base_reader
from palm.trainer.assembly import Forward

DevFiles = str | Path | Mapping[str, str | Path]
"""A data file with labels, or task -> file."""

Metrics = Sequence[str] | Mapping[str, Sequence[str]]
"""Names of metrics, or task -> names."""


def task_of(
    name: str, reader: Reader, forward: Forward, settings: Mapping[str, Any], for_train: bool = True
) -> Task:
    """The task, without its data.

    Args:
        name: the trainer's.
        reader: after `load_data` and `register_with`.
        forward: what `build_forward`, or `build_predict_forward`, was given.
        settings: further arguments of `Task`.
        for_train: whether its head needs targets.

    Raises:
        PalmError: `register_with` was not called.
        ConfigError: a batch size that the devices cannot share, or settings out of their range.
        WiringError: reader, backbone and head do not fit together.
    """
    loaded = reader.loaded
    if reader.get_registered_backbone() is None:
        raise PalmError(f"trainer {name!r}: call register_with(backbone) on its reader first")
    batch_size = loaded.batch_size
    if for_train and batch_size is not None:
        # A reader's batch_size is that of all devices together, as in PaddlePALM 2.x.
        if batch_size % num_ranks():
            raise ConfigError(
                f"load_data: batch_size {batch_size} should be a multiple of the {num_ranks()} devices"
            )
        batch_size //= num_ranks()
    if isinstance(reader, base_reader.Reader):
        # A reader of 2.x gives the tensors that are asked of it: here, what the encoder does not compute.
        for tensor in {**forward.head.targets_attr, **forward.head.inputs_attr}:
            if tensor not in forward.backbone.outputs_attr:
                reader.require_attr(tensor)
    task = Task(
        name,
        reader,
        forward.head,
        batch_size=batch_size,
        max_tokens_per_batch=loaded.max_tokens_per_batch,
        train_file=loaded.path,
        shuffle=loaded.shuffle,
        **settings,
    )
    if problems := wiring_problems(task, forward.backbone, for_train):
        raise WiringError("\n".join(problems))
    return task


def give_dev_data(
    tasks: Sequence[Task],
    forwards: Mapping[str, Forward],
    dev_file: DevFiles | None,
    metrics: Metrics | None,
) -> None:
    """Tell tasks what they are evaluated on; where nothing is given, on nothing, and by the head's metrics.

    Args:
        tasks: those of a run.
        forwards: task -> its encoder and head.
        dev_file: data with labels; of several tasks, task -> file.
        metrics: names of metrics; of several tasks, task -> names.

    Raises:
        ConfigError: names that no task has, no names where there are several tasks, or metrics that do not
            fit.
    """
    names = [task.name for task in tasks]
    files = _by_task(dev_file, names, "dev_file") if dev_file is not None else {}
    chosen = _by_task(metrics, names, "metrics") if metrics is not None else {}
    problems: list[str] = []
    for task in tasks:
        task.dev_file = Path(files[task.name]) if task.name in files else None
        task.metrics = chosen.get(task.name)
        problems += wiring_problems(task, forwards[task.name].backbone)
    raise_any(problems)


def _by_task(value: Any, names: Sequence[str], what: str) -> Mapping[str, Any]:
    """Return the value of each task; a single task's may stand alone.

    Raises:
        ConfigError: names that no task has, or no names where there are several tasks.
    """
    if not isinstance(value, Mapping):
        if len(names) > 1:
            raise ConfigError(f"{what}: there are several tasks ({', '.join(names)}); give a dict of them")
        return {names[0]: value}
    if strange := [name for name in value if name not in names]:
        raise ConfigError(f"{what} names {', '.join(strange)}; there are {', '.join(names)}")
    return value
