"""Encoded examples as flat arrays with offsets: small, quick to slice, ready to be mapped."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

Ints = npt.NDArray[np.integer]
Numbers = npt.NDArray[Any]

Facts = dict[str, str | int]
"""What tells one array from another: `dtype`, `count` and `blake2b`."""


@dataclass(frozen=True)
class Column:
    """One field of all rows.

    Args:
        values: all rows' numbers one after another; one per row where `offsets` is None. They are
            integers, but for labels that are real numbers.
        offsets: row i is `values[offsets[i] : offsets[i + 1]]`; None for one number a row.
    """

    values: Numbers
    offsets: Ints | None = None

    def __len__(self) -> int:
        return len(self.values) if self.offsets is None else len(self.offsets) - 1

    def __getitem__(self, row: int) -> Ints:
        """Row `row` as an array (of no dimension where it is one number)."""
        if self.offsets is None:
            return self.values[row, ...]
        return self.values[self.offsets[row] : self.offsets[row + 1]]

    @property
    def lengths(self) -> Ints:
        """How many numbers every row has, int64[rows]."""
        if self.offsets is None:
            return np.ones(len(self), dtype=np.int64)
        return np.diff(self.offsets)

    def part(self, start: int, stop: int) -> Column:
        """The rows from `start` to before `stop`; their numbers are not copied."""
        if self.offsets is None:
            return Column(self.values[start:stop])
        offsets = np.asarray(self.offsets[start : stop + 1])
        return Column(self.values[offsets[0] : offsets[-1]], offsets - offsets[0])

    @property
    def facts(self) -> dict[str, Facts | None]:
        """The type, the length and a hash of each of its arrays."""
        arrays = {"values": self.values, "offsets": self.offsets}
        return {name: None if array is None else facts_of(array) for name, array in arrays.items()}

    @classmethod
    def ragged(cls, rows: Sequence[Sequence[int] | Ints]) -> Column:
        """A column of rows of different lengths."""
        lengths = np.fromiter((len(row) for row in rows), dtype=np.int64, count=len(rows))
        offsets = np.concatenate([[0], np.cumsum(lengths)]).astype(np.int64)
        flat = np.concatenate([np.asarray(row) for row in rows]) if len(rows) else np.empty(0)
        return cls(flat.astype(np.int32), offsets)

    @classmethod
    def scalar(cls, values: Sequence[float] | Numbers, dtype: npt.DTypeLike = np.int64) -> Column:
        """A column of one number a row, whole ones unless `dtype` says otherwise."""
        return cls(np.asarray(values, dtype=dtype).reshape(-1))


class Rows:
    """Named columns of equal length; `token_ids` is always one of them.

    Args:
        columns: name -> column.
        digest: what `digest` gives, where it is known.

    Attributes:
        bad: the first of the file's rows that were left out or repaired, and how many there were.
    """

    bad: tuple[Sequence[dict[str, Any]], int] = ((), 0)

    def __init__(self, columns: Mapping[str, Column], digest: str | None = None) -> None:
        self.columns = dict(columns)
        self._digest = digest
        assert len({len(column) for column in self.columns.values()}) == 1, "columns of different lengths"

    def __len__(self) -> int:
        return len(self.columns["token_ids"])

    def __contains__(self, name: object) -> bool:
        return name in self.columns

    def __getitem__(self, name: str) -> Column:
        return self.columns[name]

    @property
    def lengths(self) -> Ints:
        """Number of tokens of every row, int64[rows]."""
        return self.columns["token_ids"].lengths

    @property
    def digest(self) -> str:
        """A short hash of all columns: equal rows in equal order, equal digest."""
        if self._digest is None:
            self._digest = digest_of({name: column.facts for name, column in self.columns.items()})
        return self._digest

    @property
    def num_bytes(self) -> int:
        """What its arrays take."""
        arrays = (array for column in self.columns.values() for array in (column.values, column.offsets))
        return sum(array.nbytes for array in arrays if array is not None)

    def part(self, start: int, stop: int) -> Rows:
        """The rows from `start` to before `stop`; their numbers are not copied."""
        return Rows({name: column.part(start, stop) for name, column in self.columns.items()})

    def select(self, indices: Sequence[int]) -> Rows:
        """These rows alone, in this order."""
        return Rows(
            {
                name: Column.scalar(column.values[indices], column.values.dtype)
                if column.offsets is None
                else Column.ragged([column[index] for index in indices])
                for name, column in self.columns.items()
            }
        )

    @classmethod
    def concatenate(cls, parts: Sequence[Rows]) -> Rows:
        """All rows of all parts, in order."""
        if len(parts) == 1:
            return parts[0]
        joined = {}
        for name in parts[0].columns:
            columns = [part[name] for part in parts]
            values = np.concatenate([column.values for column in columns])
            starts = np.cumsum([0] + [len(column.values) for column in columns])
            ends = [
                column.offsets[1:] + start
                for column, start in zip(columns, starts, strict=False)
                if column.offsets is not None
            ]
            joined[name] = Column(values, np.concatenate([np.zeros(1, np.int64), *ends]) if ends else None)
        return cls(joined)


def facts_of(array: Ints) -> Facts:
    """The type, length and hash of an array."""
    content = hashlib.blake2b(np.ascontiguousarray(array).data)
    return {"dtype": array.dtype.str, "count": len(array), "blake2b": content.hexdigest()}


def digest_of(columns: Mapping[str, Mapping[str, Facts | None]]) -> str:
    """A short hash of columns, from the facts about their arrays."""
    header = json.dumps(columns, sort_keys=True).encode()
    return hashlib.blake2b(header, digest_size=8).hexdigest()
