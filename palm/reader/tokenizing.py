"""The common part of readers that cut texts into the tokens of one vocabulary."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import ClassVar, TypeVar, get_args

import numpy as np
import torch

from palm.core.checks import choice_problems, raise_any
from palm.core.files.fs import write_text
from palm.core.tensor_specs import Tensors
from palm.reader.base import Draw, Reader
from palm.reader.rows.collate import SEQUENCE_ATTR, padded_batch
from palm.reader.rows.rows import Rows
from palm.reader.text.bad_rows import OnBadRow
from palm.reader.text.subwords import load_tokenizer
from palm.reader.text.tsv import TableRow, read_table

Example = TypeVar("Example")


class TokenizingReader(Reader):
    """Base of palm's readers.

    Args:
        vocab_path: the vocabulary's file.
        max_seq_len: the longest row in tokens.
        do_lower_case: lower-case the texts and strip accents.
        task_id: the number that ERNIE's task embedding gets.
        on_bad_row: see `palm.reader.text.bad_rows`.

    Attributes:
        tokenizer: that of the vocabulary.

    Raises:
        ConfigError: a setting out of its range.
        DataError: the vocabulary cannot be read.
    """

    aliases: ClassVar[dict[str, str]] = {"max_len": "max_seq_len", "max_seqlen": "max_seq_len"}
    order_2x: ClassVar[tuple[str, ...]] = (
        "vocab_path",
        "max_seq_len",
        "tokenizer",
        "lang",
        "seed",
        "do_lower_case",
        "phase",
    )

    def __init__(
        self, vocab_path: Path, max_seq_len: int, do_lower_case: bool, task_id: int, on_bad_row: OnBadRow
    ) -> None:
        raise_any(choice_problems(get_args(OnBadRow), on_bad_row=on_bad_row))
        self.vocab_path = Path(vocab_path)
        self.tokenizer = load_tokenizer(self.vocab_path, do_lower_case)
        self.vocab_size = self.tokenizer.vocab_size
        self.companions = self.tokenizer.companions
        self.max_seq_len = max_seq_len
        self.task_id = task_id
        self.on_bad_row = on_bad_row
        self.outputs_attr = SEQUENCE_ATTR

    def write_file(self, setting: str, target: Path) -> None:
        if setting == "vocab_path" and self.companions:
            write_text(target, self.tokenizer.to_library().to_str(pretty=True))
        else:
            super().write_file(setting, target)

    def collate(self, rows: Rows, indices: Sequence[int], draw: Draw) -> Tensors:  # noqa: ARG002
        """The batch of these rows, with every target that is one number a row."""
        batch = padded_batch(rows, indices, self.tokenizer.pad_id, self.task_id)
        for name in self.targets_attr:
            if name in rows and rows[name].offsets is None:
                batch[name] = torch.from_numpy(rows[name].values[np.asarray(indices)])
        return batch

    def table_examples(
        self, path: Path, with_targets: bool, columns: tuple[str, ...], make: Callable[[TableRow], Example]
    ) -> Iterator[Example]:
        """For `read`: the examples of a table's rows, which have at least these columns.

        Raises:
            DataError: as `examples_of`.
        """
        return self.examples_of(path, with_targets, partial(read_table, Path(path), columns), make)
