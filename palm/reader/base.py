"""The reader's side of the contract: files to examples to rows to batches, decoded outputs to records."""

from __future__ import annotations

import copy
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, ClassVar, TypeVar

import numpy as np

from palm.core.component import Component, Translate, checked_phase, unused
from palm.core.contract import Specs, Tensors, mismatches
from palm.core.errors import PalmError, WiringError
from palm.core.registry import Registry
from palm.reader.predictions import Predictions, Record, write_records
from palm.reader.rows.cache import DataCache, training_rows
from palm.reader.rows.chunks import num_prediction_rows
from palm.reader.rows.rows import Ints, Rows
from palm.reader.serving import HasInputs, LoadedData, for_cn_of, seeded
from palm.reader.text.tokenizer import Tokenizer

R = TypeVar("R", bound="Reader")

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
        cacheable: whether rows may be kept on disk, because they depend on nothing but the data file, the
            settings (of a setting that is a `Path`, the file's content) and this class's module. It is
            not inherited: a subclass says it again.
        truth_names: the fields of what `truths` tells, which decide what metrics fit.
    """

    cacheable: ClassVar[bool] = False
    only_2x: ClassVar[Mapping[str, Translate]] = {
        "tokenizer": unused,
        "lang": for_cn_of,
        "seed": seeded,
        "phase": checked_phase,
        "dev_count": unused,
        "print_prefix": unused,
    }
    vocab_path: Path
    vocab_size: int
    outputs_attr: Specs
    targets_attr: Specs
    truth_names: Sequence[str] = ()
    _loaded: LoadedData | None = None
    _rows: Rows | None = None
    _backbone: HasInputs | None = None

    @property
    def companions(self) -> tuple[Path, ...]:
        """Files beside the vocabulary that belong to it."""
        tokenizer = getattr(self, "tokenizer", None)
        return tokenizer.companions if isinstance(tokenizer, Tokenizer) else ()

    def write_file(self, setting: str, target: Path) -> None:
        tokenizer = getattr(self, "tokenizer", None)
        if setting == "vocab_path" and isinstance(tokenizer, Tokenizer) and tokenizer.companions:
            tokenizer.to_library().save(str(target))
        else:
            super().write_file(setting, target)

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

    def row_tokens(self, rows: Rows) -> Ints:
        """How many tokens every row brings into a batch, int64[rows]."""
        return rows.lengths

    @abstractmethod
    def records(
        self, examples: Sequence[Any], rows: Rows, decoded: Sequence[Record], first: int
    ) -> Iterator[Record]:
        """One record per example, in order, from the paradigm's decoded rows.

        Args:
            examples: a chunk of consecutive examples of the file.
            rows: what `encode` made of them.
            decoded: one value per row, from `Head.decode`.
            first: the number of the chunk's first example in the file, counted from 0.
        """

    def read_true(self, path: Path) -> Iterator[Any]:
        """The examples of a file to evaluate on, lazily, with what is true of them.

        Raises:
            DataError: as `read`.
        """
        return self.read(path, with_targets=True)

    def truths(self, examples: Iterable[Any]) -> Iterator[Record]:  # noqa: ARG002
        """What is true of each example of `read_true`, in the form of its record, for metrics.

        Raises:
            PalmError: the reader does not tell.
        """
        raise PalmError(f"{type(self).__name__} cannot be evaluated: give it truth_names and truths()")

    def write(self, records: Iterable[Record], directory: Path) -> Predictions:
        """Write the task's prediction files into `directory`; what comes back reads from them.

        Raises:
            StorageError: the directory cannot be written.
        """
        return write_records(records, directory)

    def results(self, records: Iterable[Record]) -> Iterator[Any]:
        """The records in the form in which `Trainer.predict` gives and writes them, that of 2.x."""
        yield from records

    # What PaddlePALM 2.x tells a reader: the file to serve, and the backbone to serve it to.

    def load_data(
        self,
        input_file: str | Path,
        batch_size: int,
        num_epochs: int | None = None,
        file_format: str = "tsv",  # noqa: ARG002 - every reader has one format
        shuffle_train: bool = True,
        max_tokens_per_batch: int | None = None,
    ) -> None:
        """Serve a data file; for training, it is encoded at once, or mapped from the user's cache.

        Args:
            input_file: the data.
            batch_size: rows per batch.
            num_epochs: passes over it while training; None in several tasks, whose trainer counts.
            file_format: accepted; each reader knows its format.
            shuffle_train: draw a new order for every epoch of training.
            max_tokens_per_batch: for training, in place of `batch_size`: as many of the next rows as have no
                more tokens together.

        Raises:
            ConfigError: a number out of its range.
            DataError: no such file, or a row that cannot be used, with its file and line.
        """
        loaded = LoadedData(Path(input_file), batch_size, max_tokens_per_batch, num_epochs, shuffle_train)
        if self.phase == "train":
            self._rows = training_rows(self, loaded.path, DataCache.of_user())
        else:
            self._rows = None
        self._loaded = loaded

    def register_with(self, backbone: HasInputs) -> None:
        """Serve a backbone.

        Raises:
            WiringError: it takes tensors that this reader does not give.
        """
        if problems := list(mismatches("backbone", backbone.inputs_attr, "reader", self.outputs_attr)):
            raise WiringError("\n".join(problems))
        self._backbone = backbone

    def get_registered_backbone(self) -> HasInputs | None:
        """What `register_with` was given."""
        return self._backbone

    def clone(self: R, phase: str = "train") -> R:
        """A copy for another phase, which serves nothing yet."""
        checked_phase(phase)
        other = copy.copy(self)
        other.given_2x = {**self.given_2x, "phase": phase}
        other._loaded, other._rows = None, None
        return other

    @property
    def loaded(self) -> LoadedData:
        """The arguments of `load_data`.

        Raises:
            PalmError: nothing yet.
        """
        if self._loaded is None:
            raise PalmError(f"{type(self).__name__}: call load_data(input_file, batch_size) first")
        return self._loaded

    @property
    def rows(self) -> Rows | None:
        """The encoded rows of a training file, None for prediction."""
        return self._rows

    @property
    def num_examples(self) -> int:
        """How many rows the loaded file has; a document counts once for each of its windows."""
        path = self.loaded.path
        return num_prediction_rows(self, path) if self._rows is None else len(self._rows)

    @property
    def num_epochs(self) -> int | None:
        """The arguments of `load_data`."""
        return self.loaded.num_epochs

    @property
    def seed(self) -> int | None:
        """The constructor's argument."""
        seed: int | None = self.given_2x.get("seed")
        return seed


READERS: Registry[type[Reader]] = Registry("reader", Reader)
