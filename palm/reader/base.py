"""The reader interface: from files to examples, rows and batches, and from decoded outputs to records."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, ClassVar

import numpy as np

from palm.core.component import Component, Registry
from palm.core.errors import PalmError
from palm.core.logging import logger
from palm.core.saved import Specs, Tensors
from palm.reader.predictions import Predictions, Record, write_records
from palm.reader.rows import BadRow, BadRows, Column, Rows, TextFacts
from palm.reader.tables.files import TableFormat

Draw = Callable[[int], np.random.Generator]
"""Returns the random generator of the k-th row of a batch; only called by readers that sample."""


class Reader(Component, ABC):
    """Base of readers, which read the data files of one kind of task and write its predictions.

    A reader handles files, tokenizers and text; it never sees a model. Subclasses declare the tensors of a
    batch in `outputs_attr` and `targets_attr`.

    Attributes:
        vocab_path: the vocabulary file, which is copied into every saved model.
        vocab_size: the vocabulary's largest token id + 1.
        companions: files in the vocabulary's folder that belong to it.
        outputs_attr: tensors of every batch, in training and prediction.
        targets_attr: tensors of batches with labels only.
        cacheable: whether rows may be cached on disk, because they only depend on the data file, the settings
            (for a `Path`, on the file's content) and this class's module. It is not inherited; a subclass
            has to set it again.
        target_settings: settings on which rows without targets do not depend, so that readers which differ
            in nothing else share such rows. It is not inherited; a subclass has to set it again.
        gold_names: the fields that `gold` returns; metrics that need others do not fit.
        ignored_settings: setting that is accepted for PaddlePALM's files without effect -> the reason.
        known_columns: all columns that a table of this reader may have.
        split_by: the columns whose texts must not occur in two parts of a split table.
        facts: counts over a file that `encode` adds to; None if they are not needed.
        on_bad_row: the handling of unusable rows with targets, see `palm.reader.rows`.
        bad_rows: collects these rows while a whole file is encoded; None at other times.
    """

    cacheable: ClassVar[bool] = False
    target_settings: ClassVar[tuple[str, ...]] = ()
    vocab_path: Path
    vocab_size: int
    companions: tuple[Path, ...] = ()
    outputs_attr: Specs
    targets_attr: Specs
    gold_names: Sequence[str] = ()
    ignored_settings: ClassVar[Mapping[str, str]] = {}
    known_columns: ClassVar[tuple[str, ...]] = ()
    split_by: ClassVar[tuple[str, ...]] = ("text_a", "text_b", "text_b_neg")
    facts: TextFacts | None = None
    on_bad_row: str = "error"
    bad_rows: BadRows | None = None

    @abstractmethod
    def read(self, path: Path, with_targets: bool) -> Iterator[Any]:
        """The examples of a data file, lazily, in file order.

        Without targets, a row that cannot be predicted may be a `BadRow`, so that all others are predicted.

        Raises:
            DataError: a row that cannot be used; names `file:line` and what was expected.
        """

    @abstractmethod
    def parse(self, texts: Iterable[Any]) -> Iterator[Any]:
        """Examples without targets from Python values, such as those of `model.predict([...])`."""

    @abstractmethod
    def encode(self, examples: Sequence[Any], with_targets: bool) -> Rows:
        """Tokenize examples into one row each, or several if a document is cut into windows.

        Every row has the scalar column `example`, its index in `examples`.
        """

    def encode_usable(self, examples: Sequence[Any], with_targets: bool) -> Rows:
        """Encode the examples that are not `BadRow`s."""
        usable = [number for number, example in enumerate(examples) if not isinstance(example, BadRow)]
        if len(usable) == len(examples):
            return self.encode(examples, with_targets)
        rows = self.encode([examples[number] for number in usable], with_targets)
        numbers = np.asarray(usable, dtype=np.int64)[rows["example"].values]
        return Rows({**rows.columns, "example": Column.scalar(numbers)})

    @abstractmethod
    def collate(self, rows: Rows, indices: Sequence[int], draw: Draw) -> Tensors:
        """The batch of these rows, padded to the longest one; with targets if the rows have them."""

    def records(
        self, examples: Sequence[Any], rows: Rows, decoded: Sequence[Record], first: int
    ) -> Iterator[Record]:
        """One record per example, in order: its index in the file and the result of `record`.

        Args:
            examples: a chunk of consecutive examples of the file.
            rows: their rows, as returned by `encode`.
            decoded: one value per row, from `Head.decode`.
            first: the index of the chunk's first example in the file.
        """
        bounds = np.searchsorted(rows["example"].values, np.arange(len(examples) + 1)).tolist()
        for number, example in enumerate(examples):
            if isinstance(example, BadRow):
                yield {"index": first + number, "error": example.problem}
                continue
            places = range(bounds[number], bounds[number + 1])
            values = decoded[places.start : places.stop]
            yield {"index": first + number, **self.record(example, rows, places, values)}

    def record(self, example: Any, rows: Rows, places: range, decoded: Sequence[Record]) -> Record:  # noqa: ARG002
        """The prediction for one example; by default, the decoded value of its only row.

        Args:
            example: the example as it was read.
            rows: the rows of its chunk.
            places: the indices of the example's own rows.
            decoded: one value for each of its own rows.
        """
        return decoded[0]

    def read_gold(self, path: Path) -> Iterator[Any]:
        """The examples of an evaluation file, lazily; by default, those that are trained on.

        Raises:
            DataError: see `read`.
        """
        return self.read(path, with_targets=True)

    def gold(self, example: Any) -> Record:  # noqa: ARG002
        """The true values of an example of `read_gold`, in the form of its record, for metrics.

        Raises:
            PalmError: the reader does not implement it.
        """
        raise PalmError(f"{type(self).__name__} cannot be evaluated: define gold_names and gold()")

    def write(self, records: Iterable[Record], directory: Path) -> Predictions:
        """Write the task's prediction files into `directory` and return predictions that read from them.

        Raises:
            StorageError: the directory cannot be written to.
        """
        return write_records(records, directory)

    def rows_of(self, path: Path) -> Iterable[Mapping[str, Any]]:  # noqa: ARG002
        """The rows of a table with all their columns; empty if the file is not a table."""
        return ()

    @classmethod
    def table_format(cls, path: Path, named: TableFormat | None) -> TableFormat | None:  # noqa: ARG003
        """The format of a table whose suffix does not determine it; `named` is that of the settings."""
        return named

    def warn_once(self, message: str) -> None:
        """Log a warning unless it was logged before, because a dev file is read in every evaluation."""
        warned = self.__dict__.setdefault("_warned", set())
        if message not in warned:
            warned.add(message)
            logger.warning("%s", message)


READERS: Registry[type[Reader]] = Registry("reader", Reader)
