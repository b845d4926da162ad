"""Encoded rows: examples as arrays, stored and collated into batches; and rows that cannot be used."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any, Literal, NamedTuple

import numpy as np
import numpy.typing as npt
import torch

from palm.core.errors import DataError, PalmError
from palm.core.io import read_object, verify, wrap_read_errors, write_json
from palm.core.logging import logger
from palm.core.saved import Specs, Tensors, TensorSpec
from palm.reader.tables.files import shown_path
from palm.reader.tokenizer import Tokenizer

OnBadRow = Literal["error", "skip"]

LISTED_PROBLEMS = 10
"""The most problems of a file that are kept; the others are only counted."""


@dataclass(frozen=True, slots=True)
class BadRow:
    """A row of a file to predict that cannot be predicted; its record has the reason as `error`.

    Args:
        problem: the reason, which begins with `file:line`.
        id: the id of a question.
    """

    problem: str
    id: str = ""


class BadRows:
    """The problems with rows of one file.

    Args:
        path: the file.
        mode: the setting `on_bad_row`, or 'predict' to make a `BadRow` of each.

    Attributes:
        count: the number of rows that cannot be used.
        problems: the first problems, which begin with the place.
    """

    def __init__(self, path: Path, mode: str = "error") -> None:
        self.path = shown_path(Path(path))
        self.mode = mode
        self.count = 0
        self.problems: list[str] = []

    @property
    def is_refused(self) -> bool:
        """True if the file cannot be used at all."""
        return self.mode == "error" and self.count > 0

    def add(self, error: DataError, name: object = "") -> BadRow | None:
        """Record the problem with a row; return its place among predictions, None in training.

        Args:
            error: the problem.
            name: the id of the row.
        """
        self.count += 1
        if len(self.problems) < LISTED_PROBLEMS:
            self.problems.append(str(error))
        return BadRow(str(error), str(name)) if self.mode == "predict" else None

    def finish(self, warn: Callable[[str], None] = logger.warning) -> None:
        """Refuse the file after the last row, or warn about the rows that were left out.

        Args:
            warn: called with the warning.

        Raises:
            DataError: rows cannot be used and `mode` is 'error'; reports all of them.
        """
        if not self.count:
            return
        if not self.is_refused:
            done = "cannot be predicted and have an error instead"
            if self.mode == "skip":
                done = "cannot be used; on_bad_row: skip left them out"
            warn(f"{self.path}: {self.count} rows {done}; the first: {self.problems[0]}")
            return
        lines = list(self.problems)
        if self.count > len(lines):
            lines.append(f"and {self.count - len(lines)} more")
        if self.count > 1:
            lines.append(
                f"{self.path}: {self.count} rows cannot be used; correct them or set on_bad_row: skip"
            )
        raise DataError("\n".join(lines))


_TOKENS = TensorSpec(("batch", "seq"), torch.long)

SEQUENCE_ATTR: Specs = {
    **dict.fromkeys(("token_ids", "position_ids", "segment_ids", "task_ids"), _TOKENS),
    "input_mask": TensorSpec(("batch", "seq"), torch.bool),
}
"""The tensors in every reader's batches."""

ONE_PER_ROW = TensorSpec(("batch",), torch.long)


def padded_batch(rows: Rows, indices: Sequence[int], pad_id: int, task_id: int) -> Tensors:
    """The tensors of `SEQUENCE_ATTR` for these rows, each [batch, seq].

    Args:
        rows: rows with the columns `token_ids` and `first_segment`.
        indices: indices of the batch's rows, in order.
        pad_id: the token id of padding, where all other fields are 0.
        task_id: the value of `task_ids` for real tokens.
    """
    tokens = [rows["token_ids"][index] for index in indices]
    first_segment = np.asarray([rows["first_segment"][index] for index in indices])
    lengths = np.asarray([len(row) for row in tokens])
    columns = np.arange(lengths.max())
    mask: npt.NDArray[np.bool_] = columns < lengths[:, None]  # [batch, seq]
    token_ids = np.full(mask.shape, pad_id, dtype=np.int64)
    # A mask is filled row by row from the left, in the order of the concatenated tokens.
    token_ids[mask] = np.concatenate(tokens)
    return {
        "token_ids": torch.from_numpy(token_ids),
        # Padding has position 0, which every position table contains.
        "position_ids": torch.from_numpy(columns * mask),
        "segment_ids": torch.from_numpy(((columns >= first_segment[:, None]) & mask).astype(np.int64)),
        "task_ids": torch.from_numpy(task_id * mask.astype(np.int64)),
        "input_mask": torch.from_numpy(mask),
    }


def padded(groups: Sequence[Numbers], fill: int, least: int = 0) -> torch.Tensor:
    """Pad the values of several rows on the right to one tensor, [rows, widest].

    Args:
        groups: the values of each row.
        fill: the padding value.
        least: the minimum width.
    """
    widest = max(least, *map(len, groups))
    return torch.from_numpy(
        np.stack([np.pad(group, (0, widest - len(group)), constant_values=fill) for group in groups])
    )


DESCRIPTION = "rows.json"


def write_rows(folder: Path, parts: Iterable[Rows], messages: Sequence[str]) -> None:
    """Write rows in parts, only one of which is in memory.

    Args:
        folder: an empty folder.
        parts: parts that all have the same columns.
        messages: the warnings about the rows, to be logged on later use; complete after the last part.

    Raises:
        OSError: the folder cannot be written to.
        PalmError: a part has other columns, or values of another type.
    """
    arrays: dict[str, dict[str, str]] = {}
    with ExitStack() as opened:
        file = cache(lambda name: opened.enter_context((folder / name).open("xb")))
        for rows in parts:
            found = {
                name: {part: array.dtype.str for part, array in vars(column).items() if array is not None}
                for name, column in rows.columns.items()
            }
            arrays = arrays or found
            if found != arrays:
                raise PalmError(
                    f"the reader encodes some rows as {arrays} and others as {found}; "
                    "encode should return the same columns for all examples"
                )
            for number, column in enumerate(rows.columns.values()):
                values = file(f"{number}.values")
                if column.offsets is not None:
                    # Offsets count from the file's first value; those of the first part begin with a 0.
                    offsets = file(f"{number}.offsets")
                    shifted = column.offsets + values.tell() // column.values.itemsize
                    offsets.write(shifted[1 if offsets.tell() else 0 :].data)
                values.write(np.ascontiguousarray(column.values).data)
    content = {"digest": Rows(_columns(folder, arrays)).digest, "columns": arrays, "messages": list(messages)}
    write_json(folder / DESCRIPTION, content)


def mapped_rows(folder: Path) -> tuple[Rows, list[str]]:
    """The memory-mapped rows of a folder and the warnings to be logged about them.

    Raises:
        StorageError: a file is missing, truncated or changed.
    """
    # Every file is read once for its checksum; otherwise, a flipped bit would silently train on wrong rows.
    verify(folder, (DESCRIPTION,))
    about = read_object(folder / DESCRIPTION)
    with wrap_read_errors(folder / DESCRIPTION):
        rows = Rows(_columns(folder, about["columns"]), about["digest"])
        return rows, [str(message) for message in about["messages"]]


def _columns(folder: Path, arrays: Mapping[str, Mapping[str, str]]) -> dict[str, Column]:
    """The mapped columns of a folder, from the type of each of their arrays."""
    return {
        name: Column(**{part: _mapped(folder / f"{number}.{part}", kind) for part, kind in parts.items()})
        for number, (name, parts) in enumerate(arrays.items())
    }


def _mapped(path: Path, kind: str) -> Ints:
    if not path.stat().st_size:  # an empty file cannot be mapped
        return np.empty(0, kind)
    return np.asarray(np.memmap(path, np.dtype(kind), mode="r"))


MAX_UNKNOWN = 0.1
"""The fraction of unknown tokens above which there is a remark. Texts in another language than the
vocabulary, or in capitals with a lower-case vocabulary, have several times as many."""


MIN_LETTERS = 2.0
"""The mean letters per token below which the vocabulary is probably for another language; 4 are usual."""


class Remark(NamedTuple):
    """A likely mistake of the user: a one-word code, the finding and the remedy."""

    code: str
    found: str
    remedy: str


class TextFacts:
    """Counts over the texts of one file.

    Attributes:
        tokens: the number of tokens, without special tokens.
        unknown: the number of unknown tokens.
        letters: the number of letters in ASCII texts; `ascii_tokens` is the number of their tokens.
        texts: the number of texts.
        capitals: texts with capital letters, if the vocabulary has none and texts are not lower-cased.
        empty: texts without any token.
        cut: what is cut (`rows`, `questions`, `spans`) -> its number, the total, and the setting that cuts.
    """

    def __init__(self) -> None:
        self.tokens = 0
        self.unknown = 0
        self.letters = 0
        self.ascii_tokens = 0
        self.texts = 0
        self.capitals = 0
        self.empty = 0
        self.cut: dict[str, tuple[int, int, str]] = {}

    def add_texts(self, tokenizer: Tokenizer, texts: Sequence[str], ids: Iterable[Sequence[int]]) -> None:
        """Count texts and their tokens."""
        unknown = tokenizer.unk_id
        before = self.tokens
        for tokens in ids:
            self.tokens += len(tokens)
            self.unknown += tokens.count(unknown)
            self.empty += not len(tokens)
        self.texts += len(texts)
        if all(map(str.isascii, texts)):  # in other scripts, a character may be a word
            self.letters += sum(len("".join(text.split())) for text in texts)
            self.ascii_tokens += self.tokens - before
        if tokenizer.lacks_capitals:
            self.capitals += sum(text != text.lower() for text in texts)

    def add_cut(self, what: str, count: int, total: int, setting: str) -> None:
        """Count that a setting cuts `count` of `total` rows, questions or spans."""
        before = self.cut.get(what, (0, 0, setting))
        self.cut[what] = (before[0] + count, before[1] + total, setting)

    def remarks(self, vocab_path: Path) -> Iterator[Remark]:
        """The likely mistakes with their remedies."""
        if self.capitals:
            yield Remark(
                "case",
                f"{part_of(self.capitals, self.texts)} texts have capital letters, but the vocabulary "
                f"{vocab_path} only has lower-case words",
                "set do_lower_case: True",
            )
        elif self.unknown > MAX_UNKNOWN * self.tokens:
            yield Remark(
                "unknown",
                f"{part_of(self.unknown, self.tokens)} tokens are not in the vocabulary {vocab_path}",
                "check that it is the vocabulary for these texts, and that do_lower_case is right for it",
            )
        elif self.letters < MIN_LETTERS * self.ascii_tokens:
            mean = self.letters / self.ascii_tokens
            found = f"tokens have {mean:.1f} letters on average, so words are split into many subwords"
            yield Remark("pieces", found, f"check that {vocab_path} is the vocabulary for these texts")
        if self.empty:
            found = f"{part_of(self.empty, self.texts)} texts have no tokens"
            yield Remark("empty", found, "check them for stray characters")
        for what, (count, total, setting) in self.cut.items():
            if count:
                found = f"{part_of(count, total)} {what} are too long and were cut"
                yield Remark("truncation", found, f"raise {setting}")


def part_of(count: int, total: int) -> str:
    """Return `3 of 60 (5.0 %)`."""
    return f"{count} of {total} ({100 * count / max(1, total):.1f} %)"


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
    """

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
            offsets = None
            if first.offsets is not None:
                offsets = offsets_of(np.concatenate([part[name].lengths for part in parts]))
            joined[name] = Column(values, offsets)
        return cls(joined)


def offsets_of(lengths: Sequence[int] | Ints) -> Ints:
    """The `Column.offsets` of rows of these lengths, int64[rows + 1]."""
    return np.concatenate([[0], np.cumsum(lengths)]).astype(np.int64)


def grouped(each: Rows, counts: Sequence[int]) -> Rows:
    """Rows of several sequences each.

    Args:
        each: one row for every sequence, in order.
        counts: the number of sequences of each new row.
    """
    ends = offsets_of(counts)
    tokens = each["token_ids"]
    assert tokens.offsets is not None
    return Rows(
        {
            "token_ids": Column(tokens.values, tokens.offsets[ends]),
            "sequence_lengths": Column(each.lengths, ends),
            "first_segments": Column(each["first_segment"].values, ends),
            "example": Column.scalar(range(len(counts))),
        }
    )


def sequences_in(rows: Rows, indices: Sequence[int]) -> tuple[Rows, list[Ints]]:
    """One row for every sequence of these rows of `grouped`, and the numbers of each one's sequences."""
    chosen = rows.select(indices)
    lengths = chosen["sequence_lengths"]
    assert lengths.offsets is not None
    each = Rows(
        {
            "token_ids": Column(chosen["token_ids"].values, offsets_of(lengths.values)),
            "first_segment": Column(chosen["first_segments"].values),
        }
    )
    return each, np.split(np.arange(len(each)), lengths.offsets[1:-1])
