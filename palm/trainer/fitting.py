"""A task of what a trainer was given: encoder, head and reader, by the rules of PaddlePALM 2.x."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from palm.core.errors import ConfigError, PalmError, WiringError
from palm.distributed.group import num_ranks
from palm.engine.training.task import Task, wiring_problems
from palm.reader import Reader, base_reader
from palm.trainer.assembly import Forward


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
