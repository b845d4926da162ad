"""Functions of PaddlePALM 2.x for several devices: counting them, and splitting batches into pieces.

palm itself does not use them, since each process uses one device (`torchrun` starts several). They are for
programs that call them directly.
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
"""Number of processors, or the value of the environment variable `CPU_NUM`."""

dev_count: int = gpu_dev_count or 1
"""Number of devices among which a batch is divided."""


def yield_pieces(
    data: Sequence[Any], distribute_strategy: Sequence[str], batch_size: int, num_pieces: int = dev_count
) -> Iterator[list[Any]]:
    """Split a batch into one piece per device; a short batch makes fewer pieces.

    Args:
        data: the fields of the batch; the first has one entry per row.
        distribute_strategy: for each field 's' or 'split' (each piece gets some of its rows), 'c' or
            'copy' (each gets all of it), or 'u' or 'unstack' (piece i gets entry i).
        batch_size: rows of a full batch, a multiple of `num_pieces`.
        num_pieces: number of devices.

    Raises:
        ValueError: the size cannot be divided, or a strategy is unknown.
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
    """Group pieces, one per device.

    Args:
        pieces: the pieces from `yield_pieces`, batch after batch.
        phase: with 'predict', an incomplete last group repeats its last piece.
        prefetch_steps: accepted but ignored; pieces are made on demand, which is as cheap as a slice.
        group_size: number of devices.

    Yields:
        The pieces of a group, and for each piece True if it is real or False if it is a repetition.
    """
    waiting = iter(pieces)
    while group := list(islice(waiting, group_size)):
        missing = group_size - len(group) if phase == "predict" else 0
        yield group + group[-1:] * missing, [True] * len(group) + [False] * missing


def decode_fake(nums: int, mask: Sequence[bool], bs: int) -> int:
    """Count the output rows at the end of a group that come from repeated pieces.

    Args:
        nums: number of output rows of the group.
        mask: the second value from `data_feeder`.
        bs: rows of a full batch over all devices.
    """
    real = sum(mask)
    repeated = len(mask) - real
    rows_of_last = (nums - (real - 1) * (bs // len(mask))) // (repeated + 1)
    return rows_of_last * repeated
