"""Functions of PaddlePALM 2.x for several devices: their number, batches cut into pieces, pieces in groups.

Nothing in palm needs it, since one process is one device (`torchrun` starts several): it is for
programs that call these functions themselves.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Sequence
from itertools import islice
from typing import Any, TypeVar

import torch

T = TypeVar("T")

gpu_dev_count: int = torch.cuda.device_count()
"""Number of visible GPUs."""

cpu_dev_count: int = int(os.environ.get("CPU_NUM") or os.cpu_count() or 1)
"""Number of processors, or what the environment variable `CPU_NUM` says."""

dev_count: int = gpu_dev_count or 1
"""Number of devices that a batch is cut for."""


def yield_pieces(
    data: Sequence[Any], distribute_strategy: Sequence[str], batch_size: int, num_pieces: int = dev_count
) -> Iterator[list[Any]]:
    """Cut one batch into a piece per device; a short batch makes fewer.

    Args:
        data: the fields of the batch, the first with one entry a row.
        distribute_strategy: for each field 's' or 'split' (every piece has some of its rows), 'c' or
            'copy' (all of it) or 'u' or 'unstack' (piece i has its entry i).
        batch_size: rows of a full batch, a multiple of `num_pieces`.
        num_pieces: the number of devices.

    Raises:
        ValueError: a size that cannot be divided, or an unknown strategy.
    """
    strategies = [strategy[:1] for strategy in distribute_strategy]
    if batch_size % num_pieces or not set(strategies) <= set("scu"):
        raise ValueError(
            f"batch_size {batch_size} should be a multiple of {num_pieces}, and every strategy one of "
            f"'split', 'copy', 'unstack', not {list(distribute_strategy)}"
        )
    size = batch_size // num_pieces
    for number in range(-(-len(data[0]) // size)):
        rows = slice(number * size, (number + 1) * size)
        yield [
            field if strategy == "c" else field[rows if strategy == "s" else number]
            for field, strategy in zip(data, strategies, strict=True)
        ]


def data_feeder(
    pieces: Iterable[T],
    phase: str = "train",
    prefetch_steps: int = 2,  # noqa: ARG001
    group_size: int = dev_count,
) -> Iterator[tuple[list[T], list[bool]]]:
    """Groups of one piece per device.

    Args:
        pieces: what `yield_pieces` gives, batch after batch.
        phase: in 'predict', a last group that is not full repeats its last piece.
        prefetch_steps: accepted; a group is cut when it is asked for, which costs no more than a slice.
        group_size: the number of devices.

    Yields:
        The pieces of a group, and for each whether it is real (True) or a repetition (False).
    """
    waiting = iter(pieces)
    while group := list(islice(waiting, group_size)):
        missing = group_size - len(group) if phase == "predict" else 0
        yield group + group[-1:] * missing, [True] * len(group) + [False] * missing


def decode_fake(nums: int, mask: Sequence[bool], bs: int) -> int:
    """Count the output rows, at the end of a group's, that come from repeated pieces.

    Args:
        nums: all output rows of the group.
        mask: as `data_feeder` gave it.
        bs: rows of a full batch over all devices.
    """
    real = sum(mask)
    repeated = len(mask) - real
    rows_of_last = (nums - (real - 1) * (bs // len(mask))) // (repeated + 1)
    return rows_of_last * repeated
