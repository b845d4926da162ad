"""Labels in data files: class ids or names, or real numbers."""

from __future__ import annotations

import json
import re
import unicodedata
from collections.abc import Mapping
from pathlib import Path
from types import NoneType
from typing import Any, ClassVar, Literal

import numpy as np
import torch

from palm.core.component import count_problems, did_you_mean, raise_any, type_problems
from palm.core.errors import ConfigError, DataError, about, shortened
from palm.core.io import describe_error, parse_json, read_bytes, wrap_read_errors
from palm.core.saved import NO_LABEL
from palm.reader.tables.columns import ClassId, cell_text, cut

_SHOWN = 10

IDS = "; if labels are written as ids, set n_classes instead of label_map"

_NUMBER = re.compile(r"[-+]?([0-9]+\.?[0-9]*|\.[0-9]+)([eE][-+]?[0-9]+)?")

Shape = tuple[str | int, ...]

LabelType = Literal["class", "real", "count"]

Label = float | list[int] | list[float]
"""An id, a number, the ids of all labels of a text, or the relevances of all candidates."""

MAX_LABEL = 2**31 - 1
"""The largest label id, which has to fit into an int32."""


class Labels:
    """The labels of one task.

    Args:
        n_classes: the number of labels; None for as many as `label_map` has, or for any number.
        label_map: name -> id, or a JSON file with it; None if labels are written as ids.

    Attributes:
        target: the name of the labels in a batch.
        dtype: the dtype of the labels in a batch.
        shape: the shape of the labels in a batch.
        field: the name of a label in a record.
        names: id -> name; empty if labels are written as ids.
        unknown: the value for a row without a label, which losses ignore.

    Raises:
        ConfigError: not a mapping from names to ids, or ids of `n_classes` or more.
        DataError: the file cannot be read.
    """

    target: ClassVar[str] = "label_ids"
    dtype: ClassVar[torch.dtype] = torch.long
    shape: Shape = ("batch",)
    field: ClassVar[str] = "label"
    unknown: Any = NO_LABEL

    def __init__(self, n_classes: int | None, label_map: Path | str | Mapping[str, int] | None) -> None:
        if n_classes is not None and (not isinstance(n_classes, int) or n_classes < 1):
            raise ConfigError(count_problems(least=2, n_classes=n_classes))
        kinds = (str, Path, Mapping, NoneType)
        raise_any(type_problems(kinds, "a file or a mapping from labels to ids", label_map=label_map))
        self._ids = {} if label_map is None else _ids_of(label_map, n_classes)
        self._composed = {unicodedata.normalize("NFC", name): number for name, number in self._ids.items()}
        self.names = {number: name for name, number in self._ids.items()}
        self._n_classes = n_classes
        self._of_files: dict[int, str] = {}  # id -> the name that a data file has for it

    def value_of(self, cell: Any, place: str) -> int:
        """The id of the label in a cell; with a label_map, an integer that is not a name is an id.

        Raises:
            DataError: not a label of this task; the message begins with `place`.
        """
        text = cell_text(cell)
        shown = "null" if cell is None else repr(text)
        if isinstance(cell, ClassId) and not self._ids:
            text = str(int(cell))
            known = self._of_files.setdefault(int(cell), cell.name)
            if cell.name != known:
                raise DataError(
                    f"{place}: the file calls the label {text} {cell.name!r}, an earlier file {known!r}; set "
                    "label_map, so that names count"
                )
        for name in (text, unicodedata.normalize("NFC", text)):  # é as one character or two is one label
            if name in self._ids:
                return self._ids[name]
            if name in self._composed:
                return self._composed[name]
        if type(cell) in (int, float) and cell in self.names:  # not the id of a label that the file names
            return int(cell)
        if self._ids:
            known = ", ".join(shortened(list(self._ids), _SHOWN))
            hint = did_you_mean(text, self._ids) or (IDS if text.isdecimal() else "")
            raise DataError(f"{place}: the label {shown} is not in the label_map ({known}){hint}")
        if not re.fullmatch(r"-?[0-9]{1,18}", text):
            raise DataError(
                f"{place}: the label {shown} is not a whole number{self._range}; set label_map for names"
            )
        if int(text) < 0 or (self._n_classes is not None and int(text) >= self._n_classes):
            raise DataError(f"{place}: the label {text!r} should be a whole number{self._range}")
        return int(text)

    @property
    def count(self) -> int:
        """The number of labels.

        Raises:
            ConfigError: the number is unknown.
        """
        if self._n_classes is None and not self.names:
            raise ConfigError(
                about("n_classes", ": the number of labels is unknown; set n_classes or label_map")
            )
        return self._n_classes or max(self.names) + 1

    @property
    def _range(self) -> str:
        return " of 0 or more" if self._n_classes is None else f" from 0 to {self._n_classes - 1}"


def moved_labels(one: Mapping[int, str], other: Mapping[int, str]) -> str:
    """Return the labels to which two mappings from id to name assign different ids: "'no' is 0 and 1, …"."""
    ids = {name: number for number, name in other.items()}
    moved = [f"{n!r} is {k} and {ids[n]}" for k, n in one.items() if n in ids and ids[n] != k]
    return ", ".join(moved[:_SHOWN])


def is_list(cell: Any) -> bool:
    """Check whether a cell is a list, or one as JSON."""
    return cell.startswith("[") if isinstance(cell, str) else isinstance(cell, list | tuple)


def list_in(cell: Any, place: str, column: str, of: str) -> list[Any]:
    """The list in a cell, which is JSON in a TSV or CSV file.

    Args:
        cell: the cell of a file, or a Python value.
        place: the beginning of messages.
        column: the name of the column, for messages.
        of: the expected kind of elements, for messages.

    Raises:
        DataError: not a list.
    """
    if not is_list(cell):
        raise DataError(f"{place}: {column} should be a list of {of}, not {cell!r}")
    try:
        return list(parse_json(cell.encode()) if isinstance(cell, str) else cell)
    except (ValueError, RecursionError) as error:
        reason = describe_error(error)
        raise DataError(f"{place}: {column} is not a list in JSON ({reason}): {cut(cell)!r}") from None


class RealLabels:
    """The labels of a task that predicts a number.

    Attributes:
        target: the name of the labels in a batch.
        dtype: the dtype of the labels in a batch.
        shape: the shape of the labels in a batch.
        field: the name of a label in a record.
        names: empty, because numbers have no names.
    """

    target: ClassVar[str] = "label_values"
    dtype: ClassVar[torch.dtype] = torch.float
    shape: Shape = ("batch",)
    field: ClassVar[str] = "value"
    unknown: ClassVar[None] = None
    names: ClassVar[dict[int, str]] = {}

    def value_of(self, cell: Any, place: str) -> float:
        """The number in a cell.

        Raises:
            DataError: not a finite number; the message begins with `place`.
        """
        text = cell_text(cell)
        if not _NUMBER.fullmatch(text):
            raise DataError(f"{place}: the label {text!r} is not a number; write it like 3, -0.5 or 1e-3")
        value = float(text)
        if abs(value) > float(np.finfo(np.float32).max):
            raise DataError(f"{place}: the label {cell} is too large for a 32-bit number; scale the labels")
        return value


class CountLabels(RealLabels):
    """The labels of a task that predicts how often something happens."""

    def value_of(self, cell: Any, place: str) -> float:
        value = super().value_of(cell, place)
        if value < 0 or not value.is_integer():
            raise DataError(f"{place}: the label {cell_text(cell)!r} should be a whole number of 0 or more")
        return value


def check_labelled(label: Label, place: str) -> None:
    """Refuse a row without a label in an evaluation file.

    Raises:
        DataError: the row has no label; the message begins with `place`.
    """
    if (type(label) is int and label == NO_LABEL) or (isinstance(label, list) and min(label, default=0) < 0):
        raise DataError(f"{place}: the label is empty; evaluation needs one, even with missing_labels")


def labels_of(
    label_type: LabelType, n_classes: int | None, label_map: Path | str | Mapping[str, int] | None
) -> Labels | RealLabels:
    """The labels that a reader's settings describe.

    Args:
        label_type: 'class', 'real' or 'count'.
        n_classes: number of classes; not used for numbers.
        label_map: see `Labels`.

    Raises:
        ConfigError: a `label_map` for numbers, or an error of `Labels`.
    """
    if label_type == "class":
        return Labels(n_classes, label_map)
    if label_map is not None:
        raise ConfigError(about("label_map", ": real labels are numbers and have no names; remove it"))
    return RealLabels() if label_type == "real" else CountLabels()


def _ids_of(label_map: Path | str | Mapping[str, int], n_classes: int | None) -> dict[str, int]:
    if isinstance(label_map, Mapping):
        where = "label_map"
        mapping = dict(label_map)
    else:
        where = f"{label_map}"
        with wrap_read_errors(label_map, " the label_map", DataError):
            try:
                mapping = parse_json(read_bytes(Path(label_map)), unique=True)
            except json.JSONDecodeError as error:
                raise DataError(
                    f"{label_map}:{error.lineno}:{error.colno}: the label_map is not JSON: {error.msg}"
                ) from error
    if not isinstance(mapping, dict) or not mapping:
        raise ConfigError(f"{where}: expected a mapping from label to id, like {{'no': 0, 'yes': 1}}")
    problems = []
    names: dict[int, str] = {}
    for name, number in mapping.items():
        if type(number) is not int or not 0 <= number <= MAX_LABEL or not isinstance(name, str):
            problems.append(
                f"{where}: the id of {name!r} should be a whole number from 0 to {MAX_LABEL}, not {number!r}"
            )
        elif number in names:
            problems.append(f"{where}: {names[number]!r} and {name!r} have the same id {number}")
        elif n_classes is not None and number >= n_classes:
            problems.append(f"{where}: the id {number} of {name!r} does not fit n_classes {n_classes}")
        else:
            names[number] = name
    raise_any(problems)
    return mapping
