"""The methods of a reader in PaddlePALM 2.x, such as `load_data`, `register_with` and `clone`."""

from __future__ import annotations

import copy
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Protocol, TypeVar, cast

import torch

from palm.core.checks import count_problems, path_problems, raise_any
from palm.core.component_2x import Component2x, Translate, checked_phase, unused
from palm.core.errors import ConfigError, DataError, PalmError, WiringError
from palm.core.tensor_specs import Specs, mismatches
from palm.reader.cache import DataCache, training_rows
from palm.reader.chunks import num_prediction_rows
from palm.reader.rows.rows import Rows
from palm.reader.tables.files import is_data

if TYPE_CHECKING:
    from palm.reader.base import Reader

R = TypeVar("R", bound="Methods2x")


@dataclass(frozen=True)
class LoadedData:
    """The arguments of `load_data`.

    Args:
        path: the data file.
        batch_size: rows per batch.
        max_tokens_per_batch: replaces `batch_size` in training; see `Task`.
        num_epochs: passes over the file in training; None if the trainer decides.
        shuffle: whether to shuffle the training rows in every epoch.
    """

    path: Path
    batch_size: int
    max_tokens_per_batch: int | None
    num_epochs: int | None
    shuffle: bool

    def __post_init__(self) -> None:
        counts = {name: getattr(self, name) for name in ("batch_size", "max_tokens_per_batch", "num_epochs")}
        problems = count_problems(**{name: count for name, count in counts.items() if count is not None})
        raise_any(f"load_data: {problem}" for problem in problems)
        if not is_data(self.path):
            raise DataError(f"{self.path}: no such data file")


class HasInputs(Protocol):
    """The part of the backbone interface that a reader needs."""

    inputs_attr: Specs


def _for_cn(lang: object) -> dict[str, Any]:
    """Translate the argument `lang` of 2.x: 'cn' or 'chinese', 'en' or 'english'.

    Raises:
        ConfigError: for any other value.
    """
    known = {"en": False, "english": False, "cn": True, "chinese": True}
    if str(lang).lower() not in known:
        raise ConfigError(f"lang should be one of {', '.join(known)}, not {lang!r}")
    return {"for_cn": known[str(lang).lower()]}


def _seeded(seed: int | None) -> dict[str, Any]:
    """Seed the global generator: in 2.x, `seed` determines the later initialization of backbone and heads."""
    if seed is not None:
        torch.manual_seed(seed)
    return {}


class Methods2x(Component2x):
    """The methods of a reader for programs of PaddlePALM 2.x; the rest of the reader does not need them.

    Every reader, including a user's, has them, because such programs call them; only trainers read the
    attributes.

    Attributes:
        loaded_data: the arguments of `load_data`; None before the call.
        loaded_rows: the encoded rows of that file, if it is a training file.
        registered_backbone: the argument of `register_with`.
    """

    only_2x: ClassVar[Mapping[str, Translate]] = {
        "tokenizer": unused,
        "lang": _for_cn,
        "seed": _seeded,
        "phase": checked_phase,
        "dev_count": unused,
        "print_prefix": unused,
    }
    outputs_attr: Specs
    targets_attr: Specs
    loaded_data: LoadedData | None = None
    loaded_rows: Rows | None = None
    registered_backbone: HasInputs | None = None

    def load_data(
        self,
        input_file: str | Path,
        batch_size: int,
        num_epochs: int | None = None,
        file_format: str = "tsv",  # noqa: ARG002 - every reader has one format
        shuffle_train: bool = True,
        max_tokens_per_batch: int | None = None,
    ) -> None:
        """Open a data file; a training file is encoded immediately, or mapped from the user's cache.

        Args:
            input_file: the data file.
            batch_size: rows per batch.
            num_epochs: passes over the file in training; None with several tasks, where the trainer decides.
            file_format: accepted for 2.x, not used.
            shuffle_train: whether to shuffle the rows in every epoch of training.
            max_tokens_per_batch: replaces `batch_size` in training: a batch has as many rows as fit into this
                number of tokens.

        Raises:
            ConfigError: a number out of its range.
            DataError: no such file, or a row that cannot be used, with its file and line.
        """
        raise_any(path_problems(input_file=input_file))
        if not isinstance(shuffle_train, bool):
            raise ConfigError(f"shuffle_train should be true or false, not {shuffle_train!r}")
        data = LoadedData(Path(input_file), batch_size, max_tokens_per_batch, num_epochs, shuffle_train)
        is_training = self.phase == "train"
        self.loaded_rows = (
            training_rows(self._reader, data.path, DataCache.of_user()) if is_training else None
        )
        self.loaded_data = data

    def register_with(self, backbone: HasInputs) -> None:
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

    def get_registered_backbone(self) -> HasInputs | None:
        """The argument of `register_with`."""
        return self.registered_backbone

    def clone(self: R, phase: str = "train") -> R:
        """A copy for another phase, without a data file."""
        checked_phase(phase)
        other = copy.copy(self)
        other.given_2x = {**self.given_2x, "phase": phase}
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
    def _reader(self) -> Reader:
        return cast("Reader", self)

    @property
    def num_examples(self) -> int:
        """The number of rows of the loaded file; a document counts once for each of its windows."""
        if self.loaded_rows is not None:
            return len(self.loaded_rows)
        return num_prediction_rows(self._reader, self.loaded.path)

    @property
    def num_epochs(self) -> int | None:
        """The argument of `load_data`."""
        return self.loaded.num_epochs

    @property
    def seed(self) -> int | None:
        """The argument `seed` of the constructor."""
        seed: int | None = self.settings.get("seed", self.given_2x.get("seed"))
        return seed
