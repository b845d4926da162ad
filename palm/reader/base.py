"""The reader's side of the contract: files to examples to rows to batches, decoded outputs to records."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from palm.component import Component
from palm.contract import Specs, Tensors
from palm.reader.predictions import Predictions, Record, write_records
from palm.reader.rows import Rows
from palm.registry import Registry

Draw = Callable[[int], np.random.Generator]
"""The generator of the k-th row of a batch; only readers that draw call it."""


class Reader(Component, ABC):
    """Reads the data files of one kind of task, and writes its predictions.

    A reader knows files, tokenizers and text; it never sees a model. Subclasses declare
    in `outputs_attr` and `targets_attr` what a batch carries.

    Attributes:
        vocab_path: the vocabulary file, which is copied into every saved model.
        vocab_size: the vocabulary's largest token id + 1.
        outputs_attr: tensors of every batch, training or prediction.
        targets_attr: tensors that only a batch with labels carries.
    """

    vocab_path: Path
    vocab_size: int
    outputs_attr: Specs
    targets_attr: Specs

    @abstractmethod
    def read(self, path: Path, with_targets: bool) -> Iterator[Any]:
        """The examples of a data file, lazily, in file order.

        Raises:
            DataError: with `file:line`, what came, what was expected.
        """

    @abstractmethod
    def parse(self, texts: Iterable[Any]) -> Iterator[Any]:
        """Examples without targets from Python values, as `model.predict([...])` takes them."""

    @abstractmethod
    def encode(self, examples: Sequence[Any], with_targets: bool) -> Rows:
        """Tokenize; one row per example, or several where a document is cut into windows.

        Every row has the scalar column `example`, the index into `examples`.
        """

    @abstractmethod
    def collate(self, rows: Rows, indices: Sequence[int], draw: Draw) -> Tensors:
        """The batch of these rows, padded to the longest; with targets if the rows have them."""

    @abstractmethod
    def records(
        self, examples: Sequence[Any], rows: Rows, decoded: Sequence[Record], first: int
    ) -> Iterator[Record]:
        """One record per example, in order, from the paradigm's decoded rows.

        Args:
            examples: a chunk of consecutive examples of the file.
            rows: what `encode` made of them.
            decoded: one value per row, from `Paradigm.decode`.
            first: the number of the chunk's first example in the file, counted from 0.
        """

    def write(self, records: Iterable[Record], directory: Path) -> Predictions:
        """Write the task's prediction files into `directory`; what comes back reads from them.

        Raises:
            StorageError: the directory cannot be written.
        """
        return write_records(records, directory)


READERS: Registry[type[Reader]] = Registry("reader")
