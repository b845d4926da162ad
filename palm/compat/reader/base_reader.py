"""Base of readers written for PaddlePALM 2.x, with `load_data` and an iterator over batches."""

from __future__ import annotations

import functools
import inspect
from abc import abstractmethod
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import islice
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
import numpy.typing as npt
import torch
from torch.nn.utils.rnn import pad_sequence

from palm.backbone import Backbone
from palm.compat.conventions import Declaring
from palm.compat.reader.loading import LoadedData, LoadingReader
from palm.core.errors import DataError, WiringError
from palm.core.saved import Specs, Tensors
from palm.reader.base import Draw
from palm.reader.rows import Column, Rows

R = TypeVar("R", bound="Reader")

Example = dict[str, npt.NDArray[Any]]
"""One row of a batch: field name -> its values, cut to the row's tokens."""


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
        self._registered_backbone: Backbone | None = None

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
        self._registered_backbone = backbone
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
