"""Streams whose batches show what was drawn."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch

from palm.core.saved import Tensors
from palm.reader.base import Reader, Record
from palm.reader.rows import Column, Rows
from palm.train.stream import TaskStream


class Numbers(Reader):
    """Rows that are their own number, and batches that show what was drawn."""

    def __init__(self) -> None:
        self.vocab_path, self.vocab_size = Path("unused"), 1
        self.outputs_attr, self.targets_attr = {}, {}

    def read(self, path: Path, with_targets: bool) -> Iterator[Any]:
        yield from ()

    def parse(self, texts: Any) -> Iterator[Any]:
        yield from texts

    def encode(self, examples: Sequence[Any], with_targets: bool) -> Rows:
        return Rows({"token_ids": Column.ragged([[example] for example in examples])})

    def collate(
        self, rows: Rows, indices: Sequence[int], draw: Callable[[int], np.random.Generator]
    ) -> Tensors:
        numbers = [int(rows["token_ids"][row][0]) for row in indices]
        drawn = [int(draw(k).integers(1 << 30)) for k in range(len(indices))]
        return {"token_ids": torch.tensor(numbers), "drawn": torch.tensor(drawn)}

    def records(self, examples: Any, rows: Rows, decoded: Any, first: int) -> Iterator[Record]:
        yield from decoded


def stream(rows: int, batch_size: int, seed: int = 1, task: str = "a", shuffle: bool = True) -> TaskStream:
    reader = Numbers()
    encoded = reader.encode(range(rows), True)
    return TaskStream(task, reader, encoded, seed=seed, batch_size=batch_size, shuffle=shuffle)
