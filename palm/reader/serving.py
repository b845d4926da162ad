"""Which file a reader serves, as `load_data` of PaddlePALM 2.x tells it, and files encoded by the chunk."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import torch

from palm.core.contract import Specs
from palm.core.errors import ConfigError, DataError


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
