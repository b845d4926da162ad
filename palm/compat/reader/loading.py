"""The base of readers for programs of PaddlePALM 2.x, with `load_data`, `register_with` and `clone`."""

from __future__ import annotations

import copy
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

import torch

from palm.backbone import Backbone
from palm.compat.conventions import Phased, checked_phase
from palm.core.cache import Cache
from palm.core.component import count_problems, path_problems, raise_any
from palm.core.errors import ConfigError, DataError, PalmError, WiringError
from palm.core.saved import mismatches
from palm.reader.base import Reader
from palm.reader.cache import encoded_chunks, training_rows
from palm.reader.predictions import Record
from palm.reader.rows import Rows
from palm.reader.tables.files import is_data

R = TypeVar("R", bound="LoadingReader")


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


class LoadingReader(Phased, Reader):
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
        registered_backbone: the argument of `register_with`.
    """

    loaded_data: LoadedData | None = None
    loaded_rows: Rows | None = None
    registered_backbone: Backbone | None = None

    def __init__(
        self, *args: Any, lang: str = "en", seed: int | None = None, phase: str = "train", **settings: Any
    ) -> None:
        if is_chinese(lang):
            settings["for_cn"] = True
        super().__init__(*args, **settings)
        self._phase = checked_phase(phase)
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
        self.registered_backbone = backbone

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
        return self.registered_backbone

    def clone(self: R, phase: str = "train") -> R:
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


def loading(reader: Reader) -> LoadingReader:
    """The reader of a trainer's task, which `fit_reader` has checked."""
    assert isinstance(reader, LoadingReader)
    return reader
