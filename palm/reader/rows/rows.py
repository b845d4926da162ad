"""Encoded examples as flat arrays with offsets, which are compact and can be memory-mapped."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

Ints = npt.NDArray[np.integer]
Numbers = npt.NDArray[Any]


@dataclass(frozen=True)
class Column:
    """One field of all rows.

    Args:
        values: the concatenated values of all rows, or one value per row if `offsets` is None. They are
            integers, except for real labels.
        offsets: row i is `values[offsets[i] : offsets[i + 1]]`; None for one value per row.
    """

    values: Numbers
    offsets: Ints | None = None

    def __len__(self) -> int:
        return len(self.values) if self.offsets is None else len(self.offsets) - 1

    def __getitem__(self, row: int) -> Ints:
        """Row `row` as an array, which is zero-dimensional if `offsets` is None."""
        if self.offsets is None:
            return self.values[row, ...]
        return self.values[self.offsets[row] : self.offsets[row + 1]]

    @property
    def lengths(self) -> Ints:
        """The number of values in every row, int64[rows]."""
        if self.offsets is None:
            return np.ones(len(self), dtype=np.int64)
        return np.diff(self.offsets)

    @classmethod
    def ragged(cls, rows: Sequence[Sequence[float] | Numbers], dtype: npt.DTypeLike = np.int32) -> Column:
        """A column whose rows have different lengths."""
        flat = np.concatenate([np.asarray(row) for row in rows]) if len(rows) else np.empty(0)
        return cls(flat.astype(dtype), offsets_of([len(row) for row in rows]))

    @classmethod
    def scalar(cls, values: Sequence[float] | Numbers, dtype: npt.DTypeLike = np.int64) -> Column:
        """A column with one value per row."""
        return cls(np.asarray(values, dtype=dtype).reshape(-1))


class Rows:
    """Named columns of equal length, one of which is `token_ids`.

    Args:
        columns: name -> column.
        digest: the value of `digest` if it is known.

    Attributes:
        bad: records of the file's first rows that were left out or repaired, and the number of all of them.
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
        """The number of tokens in every row, int64[rows]."""
        return self.columns["token_ids"].lengths

    @property
    def digest(self) -> str:
        """A short hash of all columns, which is equal for the same rows in the same order."""
        if self._digest is None:
            content = hashlib.blake2b(digest_size=8)
            for name, column in sorted(self.columns.items()):
                for array in (column.values, column.offsets):
                    about = None if array is None else (array.dtype.str, len(array))
                    content.update(repr((name, about)).encode())
                    content.update(b"" if array is None else np.ascontiguousarray(array).data)
            self._digest = content.hexdigest()
        return self._digest

    def select(self, indices: Sequence[int]) -> Rows:
        """Only these rows, in this order."""
        return Rows(
            {
                name: Column(column.values[indices])
                if column.offsets is None
                else Column.ragged([column[index] for index in indices], column.values.dtype)
                for name, column in self.columns.items()
            }
        )

    @classmethod
    def concatenate(cls, parts: Sequence[Rows]) -> Rows:
        """Concatenate the rows of all parts."""
        if len(parts) == 1:
            return parts[0]
        joined = {}
        for name, first in parts[0].columns.items():
            values = np.concatenate([part[name].values for part in parts])
            lengths = np.concatenate([part[name].lengths for part in parts])
            joined[name] = Column(values, None if first.offsets is None else offsets_of(lengths))
        return cls(joined)


def offsets_of(lengths: Sequence[int] | Ints) -> Ints:
    """The `Column.offsets` of rows of these lengths, int64[rows + 1]."""
    return np.concatenate([[0], np.cumsum(lengths)]).astype(np.int64)
