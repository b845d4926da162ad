"""Which file a reader serves, and to which backbone, as programs of PaddlePALM 2.x tell it."""

from __future__ import annotations

import copy
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, ClassVar, Protocol, TypeVar

import torch

from palm.core.component import Component, Translate, checked_phase, unused
from palm.core.errors import ConfigError, DataError, PalmError, WiringError
from palm.core.tensor_specs import Specs, mismatches
from palm.reader.rows.cache import DataCache, training_rows
from palm.reader.rows.chunks import RowEncoder, num_prediction_rows
from palm.reader.rows.rows import Rows

S = TypeVar("S", bound="Serving")


@dataclass(frozen=True)
class LoadedData:
    """The arguments of `load_data`.

    Args:
        path: the data file.
        batch_size: rows per batch.
        max_tokens_per_batch: for training, in place of `batch_size`; see `Task`.
        num_epochs: passes over the file while training; None for as many as the trainer wants.
        shuffle: draw a new order of the training rows for every epoch.
    """

    path: Path
    batch_size: int
    max_tokens_per_batch: int | None
    num_epochs: int | None
    shuffle: bool

    def __post_init__(self) -> None:
        counts = {name: getattr(self, name) for name in ("batch_size", "max_tokens_per_batch", "num_epochs")}
        wrong = {name: value for name, value in counts.items() if value is not None and value < 1}
        if wrong:
            raise ConfigError(
                [f"load_data: {name} should be 1 or more, not {wrong[name]!r}" for name in wrong]
            )
        if not self.path.is_file():
            raise DataError(f"{self.path}: no such data file")


class HasInputs(Protocol):
    """What a reader has to know of a backbone."""

    inputs_attr: Specs


@dataclass(frozen=True)
class Served:
    """All that a program of 2.x has told a reader since it was made.

    Args:
        data: by `load_data`.
        rows: the encoded rows of that file, if it is for training.
        backbone: by `register_with`.
    """

    data: LoadedData | None = None
    rows: Rows | None = None
    backbone: HasInputs | None = None


class _ServingReader(RowEncoder, Protocol):
    """What the methods below need of the reader that has them."""

    served: Served

    @property
    def outputs_attr(self) -> Specs: ...
    @property
    def targets_attr(self) -> Specs: ...

    @property
    def phase(self) -> str: ...
    @property
    def loaded(self) -> LoadedData: ...


def for_cn_of(lang: object) -> dict[str, Any]:
    """The argument `lang` of 2.x: 'cn' or 'chinese', 'en' or 'english'.

    Raises:
        ConfigError: for any other value.
    """
    known = {"en": False, "english": False, "cn": True, "chinese": True}
    if str(lang).lower() not in known:
        raise ConfigError([f"lang should be one of {', '.join(known)}, not {lang!r}"])
    return {"for_cn": known[str(lang).lower()]}


def seeded(seed: int | None) -> dict[str, Any]:
    """The argument `seed` of 2.x; what is built after it, backbone and heads, starts as it decides."""
    if seed is not None:
        torch.manual_seed(seed)
    return {}


class Serving(Component):
    """The methods that a reader has for programs of PaddlePALM 2.x; its own work knows nothing of them.

    They are methods of readers, also of users' own, because such programs call them there; only trainers
    read what they were told.

    Attributes:
        served: what a program has told; replaced as a whole.
    """

    only_2x: ClassVar[Mapping[str, Translate]] = {
        "tokenizer": unused,
        "lang": for_cn_of,
        "seed": seeded,
        "phase": checked_phase,
        "dev_count": unused,
        "print_prefix": unused,
    }
    served: Served = Served()

    def load_data(
        self: _ServingReader,
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
        data = LoadedData(Path(input_file), batch_size, max_tokens_per_batch, num_epochs, shuffle_train)
        rows = training_rows(self, data.path, DataCache.of_user()) if self.phase == "train" else None
        self.served = replace(self.served, data=data, rows=rows)

    def register_with(self: _ServingReader, backbone: HasInputs) -> None:
        """Serve a backbone.

        Raises:
            WiringError: it takes tensors that this reader does not give.
        """
        if problems := list(mismatches("backbone", backbone.inputs_attr, "reader", self.outputs_attr)):
            raise WiringError("\n".join(problems))
        self.served = replace(self.served, backbone=backbone)

    def require_attr(self: _ServingReader, attr_name: str) -> None:
        """Ask for a field; a reader of palm's gives all it has in any case.

        Raises:
            WiringError: it has no such field.
        """
        if attr_name not in {**self.outputs_attr, **self.targets_attr}:
            raise WiringError(f"output attr {attr_name} is not found in this reader.")

    def get_epoch_outputs(self) -> dict[str, Any]:
        """What a head's `epoch_postprocess` may want of the whole file.

        Raises:
            WiringError: this reader has nothing of the kind.
        """
        raise WiringError(f"{type(self).__name__} has no get_epoch_outputs()")

    def get_registered_backbone(self) -> HasInputs | None:
        """What `register_with` was given."""
        return self.served.backbone

    def clone(self: S, phase: str = "train") -> S:
        """A copy for another phase, which serves no file yet."""
        checked_phase(phase)
        other = copy.copy(self)
        other.given_2x = {**self.given_2x, "phase": phase}
        other.served = Served(backbone=self.served.backbone)
        return other

    @property
    def loaded(self) -> LoadedData:
        """The arguments of `load_data`.

        Raises:
            PalmError: nothing yet.
        """
        if self.served.data is None:
            raise PalmError(f"{type(self).__name__}: call load_data(input_file, batch_size) first")
        return self.served.data

    @property
    def num_examples(self: _ServingReader) -> int:
        """How many rows the loaded file has; a document counts once for each of its windows."""
        rows = self.served.rows
        return num_prediction_rows(self, self.loaded.path) if rows is None else len(rows)

    @property
    def num_epochs(self) -> int | None:
        """The argument of `load_data`."""
        return self.loaded.num_epochs

    @property
    def seed(self) -> int | None:
        """The constructor's argument."""
        seed: int | None = self.given_2x.get("seed")
        return seed
