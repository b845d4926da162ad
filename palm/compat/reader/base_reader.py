"""Bases of readers of PaddlePALM 2.x: `load_data`, `register_with` and `clone`; and of custom ones."""

from __future__ import annotations

import copy
import functools
import inspect
from abc import abstractmethod
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
import numpy.typing as npt
import torch
from torch.nn.utils.rnn import pad_sequence

from palm.backbone import Backbone
from palm.compat.conventions import Declaring, Phased, checked_phase
from palm.core.cache import Cache
from palm.core.component import count_problems, path_problems, raise_any
from palm.core.errors import ConfigError, DataError, PalmError, WiringError
from palm.core.saved import Specs, Tensors, mismatches
from palm.reader import base
from palm.reader.base import Draw
from palm.reader.cache import encoded_chunks, training_rows
from palm.reader.predictions import Record
from palm.reader.rows import Column, Rows
from palm.reader.tables.files import is_data

L = TypeVar("L", bound="LoadingReader")
R = TypeVar("R", bound="Reader")

Example = dict[str, npt.NDArray[Any]]
"""One row of a batch: field name -> its values, cut to the row's tokens."""


@dataclass(frozen=True)
class LoadedData:
    """The arguments of `load_data`.

    Args:
        path: the data file.
        batch_size: rows per batch.
        num_epochs: passes over the file in training; None if the trainer decides.
        shuffle: whether to shuffle the training rows in every epoch.
    """

    path: Path
    batch_size: int
    num_epochs: int | None
    shuffle: bool

    def __post_init__(self) -> None:
        counts = {name: getattr(self, name) for name in ("batch_size", "num_epochs")}
        problems = count_problems(**{name: count for name, count in counts.items() if count is not None})
        raise_any(f"load_data: {problem}" for problem in problems)
        if not is_data(self.path):
            raise DataError(f"{self.path}: no such data file")


def is_chinese(lang: object) -> bool:
    """Translate the argument `lang`: 'cn' or 'chinese', 'en' or 'english'.

    Raises:
        ConfigError: for any other value.
    """
    known = {"en": False, "english": False, "cn": True, "chinese": True}
    if str(lang).lower() not in known:
        raise ConfigError(f"lang should be one of {', '.join(known)}, not {lang!r}")
    return known[str(lang).lower()]


class LoadingReader(Phased, base.Reader):
    """Base of the readers of 2.x, which open one data file and are connected to one backbone.

    Args:
        args: of the reader in `palm.reader`.
        lang: 'cn' removes the spaces of texts.
        seed: seeds the global generator, because in 2.x it determines the later initialization of backbone
            and heads.
        phase: 'train' or 'predict'.
        settings: of the reader in `palm.reader`.

    Attributes:
        loaded_data: the arguments of `load_data`; None before the call.
        loaded_rows: the encoded rows of that file, if it is a training file.
    """

    loaded_data: LoadedData | None = None
    loaded_rows: Rows | None = None
    _registered_backbone: Backbone | None = None

    def __init__(
        self, *args: Any, lang: str = "en", seed: int | None = None, phase: str = "train", **settings: Any
    ) -> None:
        if is_chinese(lang):
            settings["for_cn"] = True
        super().__init__(*args, phase=phase, **settings)
        self.seed = seed
        if seed is not None:
            torch.manual_seed(seed)

    def load_data(
        self,
        input_file: str | Path,
        batch_size: int,
        num_epochs: int | None = None,
        file_format: str = "tsv",  # noqa: ARG002 - every reader has one format
        shuffle_train: bool = True,
    ) -> None:
        """Open a data file; a training file is encoded immediately, or mapped from the user's cache.

        Args:
            input_file: the data file.
            batch_size: rows per batch.
            num_epochs: passes over the file in training; None with several tasks, where the trainer decides.
            file_format: accepted for 2.x, not used.
            shuffle_train: whether to shuffle the rows in every epoch of training.

        Raises:
            ConfigError: a number out of its range.
            DataError: no such file, or a row that cannot be used, with its file and line.
        """
        raise_any(path_problems(input_file=input_file))
        if not isinstance(shuffle_train, bool):
            raise ConfigError(f"shuffle_train should be true or false, not {shuffle_train!r}")
        data = LoadedData(Path(input_file), batch_size, num_epochs, shuffle_train)
        is_training = self.phase == "train"
        self.loaded_rows = training_rows(self, data.path, Cache.of_user()) if is_training else None
        self.loaded_data = data

    def register_with(self, backbone: Backbone) -> None:
        """Connect the reader to a backbone.

        Raises:
            WiringError: it needs tensors that this reader does not provide.
        """
        if not hasattr(backbone, "inputs_attr"):
            raise ConfigError(f"backbone should be an encoder with inputs_attr, not {backbone!r}")
        if problems := list(mismatches("backbone", backbone.inputs_attr, "reader", self.outputs_attr)):
            raise WiringError("\n".join(problems))
        self._registered_backbone = backbone

    def require_attr(self, attr_name: str) -> None:
        """Request a field; palm's readers always provide all of their fields.

        Raises:
            WiringError: the reader has no such field.
        """
        if attr_name not in {**self.outputs_attr, **self.targets_attr}:
            raise WiringError(f"output attr {attr_name} is not found in this reader.")

    def get_epoch_outputs(self) -> dict[str, Any]:
        """Values of the whole file for a head's `epoch_postprocess`.

        Raises:
            WiringError: this reader does not implement it.
        """
        raise WiringError(f"{type(self).__name__} has no get_epoch_outputs()")

    def get_registered_backbone(self) -> Backbone | None:
        """The argument of `register_with`."""
        return self._registered_backbone

    def clone(self: L, phase: str = "train") -> L:
        """A copy for another phase, without a data file."""
        other = copy.copy(self)
        other._phase = checked_phase(phase)
        other.loaded_data = None
        other.loaded_rows = None
        return other

    @property
    def loaded(self) -> LoadedData:
        """The arguments of `load_data`.

        Raises:
            PalmError: `load_data` has not been called.
        """
        if self.loaded_data is None:
            raise PalmError(f"{type(self).__name__}: call load_data(input_file, batch_size) first")
        return self.loaded_data

    @property
    def num_examples(self) -> int:
        """The number of rows of the loaded file; a document counts once for each of its windows."""
        if self.loaded_rows is not None:
            return len(self.loaded_rows)
        examples = self.read(self.loaded.path, with_targets=False)
        return sum(len(rows) for _, rows in encoded_chunks(self, examples, with_targets=False))

    @property
    def num_epochs(self) -> int | None:
        """The argument of `load_data`."""
        return self.loaded.num_epochs

    def results(self, records: Iterable[Record]) -> Iterator[Any]:
        """The records in the form that `Trainer.predict` returns and writes."""
        yield from records

    def in_memory(self, results: Iterable[Any]) -> Sequence[Any] | Mapping[str, str]:
        """The return value of `Trainer.predict` without files, equal to that read from the files."""
        return list(results)


def loading(reader: base.Reader) -> LoadingReader:
    """The reader of a trainer's task, which `fit_reader` has checked."""
    assert isinstance(reader, LoadingReader)
    return reader


class Reader(Declaring, LoadingReader):
    """The base class of readers in PaddlePALM 2.x.

    A subclass has the methods `load_data` and `_iterator` and the properties `outputs_attr` and
    `num_examples`. Its batches, dicts of numpy arrays with one entry per row, are split into rows once;
    shuffling and batching in training are then the same as for any reader.

    Args:
        phase: 'train' or 'predict'.
    """

    vocab_path = Path()
    vocab_size = 0

    def __init__(self, phase: str = "train") -> None:
        super().__init__(phase)
        self._batch_size: int | None = None
        self._num_epochs: int | None = 1
        self._register = self.create_register()

    def __init_subclass__(cls, **options: Any) -> None:
        super().__init_subclass__(**options)
        if "load_data" in cls.__dict__:
            cls.load_data = _recording(cls.__dict__["load_data"])  # type: ignore[method-assign]

    @abstractmethod
    def _iterator(self) -> Iterator[Mapping[str, Any]]:
        """The batches of the loaded file, with the requested fields."""

    @classmethod
    def create_register(cls) -> set[str]:
        """The set of requested field names, initially empty."""
        return set()

    def require_attr(self, attr_name: str) -> None:
        """Request a field."""
        self._register.add(attr_name)

    def register_with(self, backbone: Backbone) -> None:
        """Request all inputs of a backbone.

        Raises:
            WiringError: it needs tensors that this reader does not provide.
        """
        for name in backbone.inputs_attr:
            self.require_attr(name)
        super().register_with(backbone)

    def _get_registed_attrs(self, attrs: Mapping[str, Any]) -> dict[str, Any]:
        """The requested fields of `attrs`.

        Raises:
            WiringError: a requested field is missing.
        """
        if strange := sorted(self._register - attrs.keys()):
            raise WiringError(f"output attr {', '.join(strange)} is not found in this reader.")
        return {name: attrs[name] for name in attrs if name in self._register}

    @property
    def num_epochs(self) -> int | None:
        return self._num_epochs

    @property
    def targets_attr(self) -> Specs:  # type: ignore[override]
        """All outputs: a reader of 2.x does not distinguish labels."""
        return self.outputs_attr

    def clone(self: R, phase: str = "train") -> R:
        other = super().clone(phase)
        other._register = set(self._register)
        return other

    def read(self, path: Path, with_targets: bool) -> Iterator[Example]:  # noqa: ARG002
        if path != self.loaded.path:
            raise DataError(
                f"{type(self).__name__} reads the file that was passed to load_data, {self.loaded.path}, "
                f"not {path}"
            )
        yield from islice(_rows_of(self._iterator(), path), self.num_examples)

    def parse(self, texts: Iterable[Any]) -> Iterator[Example]:  # noqa: ARG002
        raise DataError(f"{type(self).__name__} reads only files; write the texts to a file")

    def encode(self, examples: Sequence[Example], with_targets: bool) -> Rows:  # noqa: ARG002
        columns = {"example": Column.scalar(range(len(examples)))}
        for name, first in examples[0].items():
            values = [example[name] for example in examples]
            dtype = np.float32 if np.issubdtype(first.dtype, np.floating) else np.int64
            columns[name] = (
                Column.ragged(values, dtype) if first.ndim else Column.scalar(np.asarray(values), dtype)
            )
        return Rows(columns)

    def collate(self, rows: Rows, indices: Sequence[int], draw: Draw) -> Tensors:  # noqa: ARG002
        batch = {}
        for name in (name for name in rows.columns if name != "example"):
            values = [torch.from_numpy(np.array(rows[name][index])) for index in indices]
            is_ragged = values[0].ndim > 0
            batch[name] = pad_sequence(values, batch_first=True) if is_ragged else torch.stack(values)
        lengths = torch.tensor([len(rows["token_ids"][index]) for index in indices])
        return {**batch, "input_mask": torch.arange(int(lengths.max())) < lengths[:, None]}


def _rows_of(batches: Iterable[Mapping[str, Any]], path: Path) -> Iterator[Example]:
    """The rows of batches, without the mask and the padding that it marks.

    Raises:
        WiringError: a field that does not have one entry per row.
    """
    for batch in batches:
        arrays = {name: np.asarray(value) for name, value in batch.items()}
        size = len(arrays["token_ids"])
        if wrong := [name for name, array in arrays.items() if not array.ndim or len(array) != size]:
            raise WiringError(f"{path}: {', '.join(wrong)} should have one entry for each of {size} rows")
        for row in range(size):
            example = {name: array[row] for name, array in arrays.items()}
            width = len(example["token_ids"])
            length = int(example.pop("input_mask", np.ones(width)).sum())
            yield {
                name: value[:length] if value.ndim and len(value) == width else value
                for name, value in example.items()
            }


def _recording(load_data: Any) -> Any:
    """Wrap a subclass's `load_data` so that it records its arguments for the trainer."""
    signature = inspect.signature(load_data)

    @functools.wraps(load_data)
    def load(self: Reader, *args: Any, **kwargs: Any) -> None:
        bound = signature.bind(self, *args, **kwargs)
        bound.apply_defaults()
        data = LoadedData(
            path=Path(bound.arguments["input_file"]),
            batch_size=bound.arguments["batch_size"],
            num_epochs=bound.arguments.get("num_epochs"),
            shuffle=bool(bound.arguments.get("shuffle_train", True)),
        )
        load_data(self, *args, **kwargs)
        self.loaded_data = data

    return load
