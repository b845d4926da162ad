"""Base of readers that tokenize texts with one vocabulary."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import KW_ONLY, dataclass
from functools import partial
from itertools import pairwise, starmap
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import numpy.typing as npt
import torch

from palm.config import FilePath
from palm.core.component import path_problems, raise_any, type_problems
from palm.core.errors import ConfigError, DataError, about
from palm.core.io import write_text
from palm.core.saved import Tensors
from palm.reader.base import Draw, Reader
from palm.reader.rows import SEQUENCE_ATTR, BadRows, OnBadRow, Rows, padded_batch
from palm.reader.tables.columns import Columns, TableRow, column_problems
from palm.reader.tables.files import TableFormat, shown_path
from palm.reader.tables.reading import raw_rows, read_table, usable
from palm.reader.tokenizer import load_tokenizer


def windows_of(num_tokens: int, capacity: int, stride: int) -> list[range]:
    """Windows that cover a document, each starting `stride` tokens after the previous one.

    Args:
        num_tokens: the length of the document; 0 gives one empty window.
        capacity: the most tokens in a window.
        stride: limited to the capacity, because a larger stride would skip tokens.
    """
    # The last window also starts one stride after the previous one, even if it is not full. This gives the
    # same windows, and therefore the same training rows, as the authors' program.
    step = min(stride, capacity)
    rest = max(0, num_tokens - capacity)
    starts = range(0, rest + step, step)
    return [range(start, min(start + capacity, num_tokens)) for start in starts]


def word_windows(num_subwords: Sequence[int], capacity: int) -> list[range]:
    """Windows that contain every word once, with as many whole words in each as fit.

    Args:
        num_subwords: the number of subwords of every word, at most `capacity`.
        capacity: the most subwords in a window.

    Returns:
        Ranges of words.
    """
    starts = [0]
    used = 0
    for word, count in enumerate(num_subwords):
        if used + count > capacity:
            starts.append(word)
            used = 0
        used += count
    return list(starmap(range, pairwise([*starts, len(num_subwords)])))


def best_context(windows: Sequence[range]) -> list[npt.NDArray[np.bool_]]:
    """Mark the tokens of every window that have more context in it than in any other window.

    The context of a token is the number of tokens on its shorter side, plus a hundredth of the window's
    length; on ties, the earlier window wins.

    Source: Devlin et al., 2018, the authors' SQuAD program (`token_is_max_context`).
    """
    num_tokens = max(window.stop for window in windows)
    # The authors' program compares every token with every window. Applying the windows one after another is
    # linear; a token changes its owner only for a strictly larger context, so ties are resolved the same way.
    best = np.full(num_tokens, -1.0)
    owner = np.zeros(num_tokens, dtype=np.int64)
    for number, window in enumerate(windows):
        left = np.arange(len(window))
        context = np.minimum(left, left[::-1]) + 0.01 * len(window)
        tokens = slice(window.start, window.stop)
        owner[tokens][context > best[tokens]] = number
        best[tokens] = np.maximum(best[tokens], context)
    return [owner[window.start : window.stop] == number for number, window in enumerate(windows)]


@dataclass(eq=False, repr=False)
class TokenizingReader(Reader):
    """Base of palm's readers.

    Args:
        vocab_path: the vocabulary: one token per line, or RoBERTa's `vocab.json` with `merges.txt` in the
            same folder, or a `tokenizer.json`.
        max_seq_len: the longest row in tokens, special tokens included.
        do_lower_case: lower-case the texts and strip accents, as required by an uncased vocabulary; a
            vocabulary in a JSON file has its own setting.
        for_cn: remove all spaces from the texts, for Chinese data whose words are separated by spaces. Every
            Chinese character is a token in any case.
        task_id: the task id of ERNIE's task embedding.
        on_bad_row: unusable rows in training and evaluation: error reports all of them and stops; skip
            leaves them out.
        columns: reader's column -> the files' column, if its name differs; dots access nested objects.
        format: the format of tables whose suffix does not determine it: tsv (default), csv, jsonl, parquet
            or arrow.

    Attributes:
        min_seq_len: the least `max_seq_len` that leaves room for text, with one separator between two texts.
        columns_of: called with whether targets are read; returns the columns that a file must have.
        example_of: called with a row and whether targets are read; returns the example, or None if the row
            is not used for the task. Raises a DataError for an unusable row.
        optional_columns: columns that a file may have.
        missing_labels: whether training rows may lack a label.
        tokenizer: the tokenizer of the vocabulary.

    Raises:
        ConfigError: a setting out of its range.
        DataError: the vocabulary cannot be read.
    """

    vocab_path: FilePath
    max_seq_len: int
    _: KW_ONLY
    do_lower_case: bool = False
    for_cn: bool = False
    task_id: int = 0
    on_bad_row: OnBadRow = "error"
    columns: dict[str, str] | None = None
    format: TableFormat | None = None

    min_seq_len: ClassVar[int] = 3
    columns_of: ClassVar[Callable[..., tuple[str, ...]]]
    example_of: ClassVar[Callable[..., Any]]
    optional_columns: ClassVar[tuple[str, ...]] = ()
    missing_labels = False

    def __post_init__(self) -> None:
        super().__post_init__()
        problems = [
            *path_problems(vocab_path=self.vocab_path),
            *type_problems(int, "a whole number", max_seq_len=self.max_seq_len, task_id=self.task_id),
            *column_problems(self.columns, self.known_columns),
        ]
        raise_any(problems)
        self.vocab_path = Path(self.vocab_path)
        self.tokenizer = load_tokenizer(self.vocab_path, self.do_lower_case)
        self.vocab_size = self.tokenizer.vocab_size
        self.companions = self.tokenizer.companions
        least = self.min_seq_len + self.tokenizer.separators - 1
        if self.max_seq_len < least:
            raise ConfigError(about("max_seq_len", f" should be at least {least}, not {self.max_seq_len!r}"))
        self.for_cn = self.for_cn and "for_cn" not in self.ignored_settings
        self.outputs_attr = SEQUENCE_ATTR

    def write_file(self, setting: str, target: Path) -> None:
        if setting == "vocab_path" and self.companions:
            write_text(target, self.tokenizer.to_json())
        else:
            super().write_file(setting, target)

    def collate(self, rows: Rows, indices: Sequence[int], draw: Draw) -> Tensors:  # noqa: ARG002
        return padded_batch(rows, indices, self.tokenizer.pad_id, self.task_id) | self.targets(rows, indices)

    def targets(self, rows: Rows, indices: Sequence[int]) -> Tensors:
        """The targets of these rows that the rows contain and that have the same length in every row."""
        found = {}
        for name, spec in self.targets_attr.items():
            if name in rows and spec.shape[-1] != "seq":
                column = rows[name]
                if column.offsets is None:
                    values = column.values[np.asarray(indices)]
                else:
                    values = np.stack([column[index] for index in indices])
                found[name] = torch.from_numpy(values).to(spec.dtype)
        return found

    def read(self, path: Path, with_targets: bool) -> Iterator[Any]:
        make = partial(self.example_of, with_targets=with_targets)
        return self.table_examples(path, with_targets, self.columns_of(with_targets), make)

    def read_gold(self, path: Path) -> Iterator[Any]:
        """The examples of `read` that have a label, see `missing_labels`."""
        used = unlabelled = 0
        for example in self.read(path, with_targets=True):
            if not self.missing_labels or self.is_labelled(example):
                used += 1
                yield example
            else:
                unlabelled += 1
        self._report_unlabelled(path, used, unlabelled)

    def is_labelled(self, example: Any) -> bool:  # noqa: ARG002
        """Check whether an example of `read` has a label, which it may lack with `missing_labels`."""
        return True

    def _report_unlabelled(self, path: Path, used: int, unlabelled: int) -> None:
        shown = shown_path(Path(path)) if unlabelled else ""
        if unlabelled and not used:
            raise DataError(
                f"{shown}: none of the {unlabelled} rows has a label for this task; check the setting columns"
            )
        if unlabelled:
            self.warn_once(f"{shown}: {unlabelled} rows have no label for this task and are not used")

    def rows_of(self, path: Path) -> Iterator[Mapping[str, Any]]:
        rows = raw_rows(Path(path), default=self.table_format(path, self.format))
        # A row that cannot be read has a record, too.
        return ({} if isinstance(row, DataError) else row.cells for row in rows)

    def table_examples(
        self, path: Path, with_targets: bool, columns: Sequence[str], make: Callable[[TableRow], Any]
    ) -> Iterator[Any]:
        """Implement `read`: the examples of a table's rows.

        Args:
            path: the table.
            with_targets: with targets, `on_bad_row` decides about unusable rows; without them, they become
                `BadRow`s, so all others are predicted.
            columns: the columns that every file must have.
            make: returns the example of a row, or None if it has no label and is not used for the task.

        Raises:
            DataError: reports all rows that cannot be used.
        """
        whole_file = self.bad_rows is not None  # the encoder adds problems too, and reports all of them
        bad = self.bad_rows or BadRows(path, self.on_bad_row if with_targets else "predict")
        table_format = self.table_format(path, self.format)
        found = Columns(columns, self.optional_columns, self.columns, self.warn_once)
        used = unlabelled = 0
        for row in read_table(Path(path), found, table_format):
            try:
                example = make(usable(row))
                unlabelled += example is None
            except DataError as error:
                if row is error and bad.mode == "predict" and table_format == "squad":
                    raise  # a part of SQuAD's JSON, not a question that could have an empty answer
                name = "" if isinstance(row, DataError) else row.cells.get("id", row.place)
                example = bad.add(error, name)
            if example is not None and (whole_file or not bad.is_refused):
                used += 1
                yield example
        if not whole_file:
            bad.finish(self.warn_once)
        self._report_unlabelled(path, used, unlabelled)

    def refuse(self, errors: Sequence[DataError]) -> None:
        """Report examples for which `encode` cannot create rows.

        Raises:
            DataError: reports all of them, unless a whole file is being encoded.
        """
        if self.bad_rows is None and errors:
            raise DataError("\n".join(map(str, errors)))
        for error in errors:
            assert self.bad_rows is not None
            self.bad_rows.add(error)
