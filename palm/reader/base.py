"""The reader's side of the contract: files to examples to rows to batches, decoded outputs to records."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, ClassVar

import numpy as np

from palm.core.errors import PalmError
from palm.core.logging import logger
from palm.core.registry import Registry
from palm.core.tensor_specs import Specs, Tensors
from palm.reader.legacy_2x import Methods2x
from palm.reader.predictions import Predictions, Record, write_records
from palm.reader.rows.facts import TextFacts
from palm.reader.rows.rows import Ints, Rows
from palm.reader.tables.files import TableFormat
from palm.reader.text.bad_rows import BadRows

Draw = Callable[[int], np.random.Generator]
"""The generator of the k-th row of a batch; only readers that draw call it."""


class Reader(Methods2x, ABC):
    """Reads the data files of one kind of task, and writes its predictions.

    A reader knows files, tokenizers and text; it never sees a model. Subclasses declare
    in `outputs_attr` and `targets_attr` what a batch carries.

    Attributes:
        vocab_path: the vocabulary file, which is copied into every saved model.
        vocab_size: the vocabulary's largest token id + 1.
        companions: files beside the vocabulary that belong to it.
        outputs_attr: tensors of every batch, training or prediction.
        targets_attr: tensors that only a batch with labels carries.
        cacheable: whether rows may be kept on disk, because they depend on nothing but the data file, the
            settings (of a setting that is a `Path`, the file's content) and this class's module. It is
            not inherited: a subclass says it again.
        truth_names: the fields that `truths` gives, which decide what metrics fit.
        ignored_settings: those that are accepted for PaddlePALM's files and have no effect -> the reason.
        known_fields: all columns that a table of this reader may have.
        split_by: those of them whose texts no two parts of a table have in common.
        facts: the counts of a file that `encode` adds to; None while none are wanted.
        on_bad_row: the treatment of rows with targets that cannot be used, see `palm.reader.text.bad_rows`.
        bad_rows: where `read` and `encode` put these while a whole file is encoded; None at other times.
    """

    cacheable: ClassVar[bool] = False
    not_called: ClassVar[Mapping[str, str]] = {
        "_iterator": "override read, parse, encode or collate, or derive from palm.reader.base_reader.Reader"
    }
    vocab_path: Path
    vocab_size: int
    companions: tuple[Path, ...] = ()
    outputs_attr: Specs
    targets_attr: Specs
    truth_names: Sequence[str] = ()
    ignored_settings: ClassVar[Mapping[str, str]] = {}
    known_fields: ClassVar[tuple[str, ...]] = ()
    split_by: ClassVar[tuple[str, ...]] = ("text_a", "text_b", "text_b_neg")
    facts: TextFacts | None = None
    on_bad_row: str = "error"
    bad_rows: BadRows | None = None

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

    def records(
        self, examples: Sequence[Any], rows: Rows, decoded: Sequence[Record], first: int
    ) -> Iterator[Record]:
        """One record per example, in order: its number, and what `record` makes of its rows.

        Args:
            examples: a chunk of consecutive examples of the file.
            rows: their rows, as `encode` made them.
            decoded: one value per row, from `Head.decode`.
            first: the number of the chunk's first example in the file, counted from 0.
        """
        bounds = np.searchsorted(rows["example"].values, np.arange(len(examples) + 1)).tolist()
        for number, example in enumerate(examples):
            places = range(bounds[number], bounds[number + 1])
            values = decoded[places.start : places.stop]
            yield {"index": first + number, **self.record(example, rows, places, values)}

    def record(self, example: Any, rows: Rows, places: range, decoded: Sequence[Record]) -> Record:  # noqa: ARG002
        """The prediction for an example; here the decoded value of its only row.

        Args:
            example: as it was read.
            rows: those of its chunk.
            places: which of them are its own.
            decoded: one value for each of its own.
        """
        return decoded[0]

    def row_tokens(self, rows: Rows) -> Ints:
        """The number of tokens that every row brings into a batch, int64[rows]."""
        return rows.lengths

    def read_true(self, path: Path) -> Iterator[Any]:
        """The examples of a file to evaluate on, lazily, for `truths`.

        Raises:
            DataError: as `read`.
        """
        return self.read(path, with_targets=True)

    def truths(self, examples: Iterable[Any]) -> Iterator[Record]:  # noqa: ARG002
        """The true values of each example of `read_true`, in the form of its record, for metrics.

        Raises:
            PalmError: the reader has none.
        """
        raise PalmError(f"{type(self).__name__} cannot be evaluated: give it truth_names and truths()")

    def write(self, records: Iterable[Record], directory: Path) -> Predictions:
        """Write the task's prediction files into `directory`; the returned predictions read from them.

        Raises:
            StorageError: the directory cannot be written.
        """
        return write_records(records, directory)

    def rows_of(self, path: Path, examples: Iterable[Any] | None = None) -> Iterable[Mapping[str, Any]]:  # noqa: ARG002
        """The rows of a table with all columns; none of another file.

        Args:
            path: the table.
            examples: of which rows, as `read_true` gives them; None for one for each example to predict.
        """
        return ()

    @classmethod
    def table_format(cls, path: Path, named: TableFormat | None) -> TableFormat | None:  # noqa: ARG003
        """The format of a table whose files' names tell none; `named` is that of the settings."""
        return named

    def results(self, records: Iterable[Record]) -> Iterator[Any]:
        """The records in the form in which `Trainer.predict` gives and writes them, that of 2.x."""
        yield from records

    def in_memory(self, results: Iterable[Any]) -> Sequence[Any] | Mapping[str, str]:
        """The value of `Trainer.predict` where it writes no files: all results, as read from the files."""
        return list(results)

    def warn_once(self, message: str) -> None:
        """Warn, but not again: a dev file is read in every evaluation."""
        warned = self.__dict__.setdefault("_warned", set())
        if message not in warned:
            warned.add(message)
            logger.warning("%s", message)


READERS: Registry[type[Reader]] = Registry("reader", Reader)
