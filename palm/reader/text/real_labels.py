"""Labels that are real numbers: similarities, ratings, prices."""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from typing import ClassVar

import numpy as np
import torch

from palm.core.checks import choice_problems, raise_any
from palm.core.errors import ConfigError, DataError
from palm.reader.text.labels import Labels

_NUMBER = re.compile(r"[-+]?([0-9]+\.?[0-9]*|\.[0-9]+)([eE][-+]?[0-9]+)?")


class RealLabels:
    """The labels of a task that predicts a number.

    Attributes:
        target: what a batch calls them.
        dtype: the dtype they have there.
        field: what a record calls one.
        names: empty; numbers have no names.
    """

    target: ClassVar[str] = "label_values"
    dtype: ClassVar[torch.dtype] = torch.float
    field: ClassVar[str] = "value"
    names: ClassVar[dict[int, str]] = {}

    def value_of(self, text: str, place: str) -> float:
        """The number that a file's label stands for.

        Raises:
            DataError: not a finite number; the message begins with `place`.
        """
        if not _NUMBER.fullmatch(text):
            raise DataError(f"{place}: the label {text!r} is not a number; write it like 3, -0.5 or 1e-3")
        value = float(text)
        if abs(value) > float(np.finfo(np.float32).max):
            raise DataError(f"{place}: the label {text!r} is too large for a 32-bit number; scale the labels")
        return value


def labels_of(
    label_type: str, n_classes: int | None, label_map: Path | str | Mapping[str, int] | None
) -> Labels | RealLabels:
    """The labels that a reader's settings describe.

    Args:
        label_type: 'class' or 'real'.
        n_classes: number of classes; not used for real labels.
        label_map: the classes' names, as `Labels` takes them.

    Raises:
        ConfigError: another `label_type`, names for real labels, or what `Labels` finds.
    """
    raise_any(choice_problems(("class", "real"), label_type=label_type))
    if label_type == "class":
        return Labels(n_classes, label_map)
    if label_map is not None:
        raise ConfigError(["label_map: real labels are numbers and have no names; leave it out"])
    return RealLabels()
