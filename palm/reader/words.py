"""Base of readers of words, which split every word into subwords separately and lose none."""

from __future__ import annotations

import re
import unicodedata
from abc import abstractmethod
from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from itertools import accumulate, chain
from typing import Any

from palm.core.errors import DataError
from palm.core.io import parse_json
from palm.reader.rows import Column, Rows
from palm.reader.tables.columns import TableRow
from palm.reader.tokenizing import TokenizingReader, word_windows

WORD_SEPARATOR = "\x02"
"""The separator of words in PaddlePALM 2.x; a text that contains it is not split at spaces."""


_CJK = "\u2e80-\u9fff\uf900-\ufaff\U00020000-\U0003ffff"  # Chinese and Japanese, written without spaces

# The marks of a script belong to its letters, and so do a joiner and a soft hyphen inside a word.
_MARKS = "".join(
    chr(code) for code in range(0x300, 0xFE30) if unicodedata.category(chr(code)) in ("Mn", "Mc", "Me")
)
WORD = re.compile(rf"(?!\s)[{_CJK}][{_MARKS}]*|(?:[^\W{_CJK}][{_MARKS}\u00ad\u200c\u200d]*)+|\S[{_MARKS}]*")
"""A word of a text: letters and digits, or a single other character, such as a Chinese one."""

CHARACTER = re.compile(rf"\S[{_MARKS}]*")
"""A character with its marks."""

_UNSPACED = re.compile(rf"[{_CJK}]{{5}}")


class WordReader(TokenizingReader):
    """Base of the readers of words.

    A row is `[CLS] text_a [SEP]`; a text that does not fit continues in further rows of whole words.

    Attributes:
        input_columns: the columns that a file without targets must have.
    """

    input_columns: tuple[str, ...] = ("text_a",)

    @abstractmethod
    def own_fields(self, example: Any, window: range, with_targets: bool) -> dict[str, Sequence[int]]:
        """The reader's own columns of one row, which contains the words of the window."""

    def columns_of(self, with_targets: bool) -> tuple[str, ...]:
        return self.known_columns if with_targets else self.input_columns

    def parse(self, texts: Iterable[Any]) -> Iterator[Any]:
        for number, text in enumerate(texts):
            is_row = isinstance(text, dict) and text.keys() == {*self.input_columns}
            row = TableRow(text if is_row else {"text_a": text}, f"text {number}")
            yield self.example_of(row, with_targets=False)

    def encode(self, examples: Sequence[Any], with_targets: bool) -> Rows:
        words = list(dict.fromkeys(chain.from_iterable(example.words for example in examples)))
        # Every word has at least one subword, and no more than fit into a row.
        room = self.max_seq_len - 2
        encoded = zip(words, self.tokenizer.encode_words(words), strict=True)
        subwords_of = {word: ids[:room] or [self.tokenizer.unk_id] for word, ids in encoded}
        owners = []
        columns: dict[str, list[Sequence[int]]] = defaultdict(list, token_ids=[], word_starts=[])
        for number, example in enumerate(examples):
            subwords = [subwords_of[word] for word in example.words]
            for window in word_windows(list(map(len, subwords)), room):
                own = subwords[window.start : window.stop]
                owners.append(number)
                columns["token_ids"].append(self.tokenizer.row(chain(*own)))
                # the columns of the words' first subwords, after `[CLS]`
                columns["word_starts"].append(list(accumulate(map(len, own[:-1]), initial=1)))
                for name, values in self.own_fields(example, window, with_targets).items():
                    columns[name].append(values)
        if self.facts is not None:
            texts = [" ".join(example.words) for example in examples]
            ids = [list(chain.from_iterable(subwords_of[word] for word in each.words)) for each in examples]
            self.facts.add_texts(self.tokenizer, texts, ids)
        return Rows(
            {
                **{name: Column.ragged(values) for name, values in columns.items()},
                "first_segment": Column.scalar(list(map(len, columns["token_ids"]))),
                "example": Column.scalar(owners),
            }
        )


def split_words(cell: str) -> list[str]:
    """The words (or labels) of one cell of a table.

    They are separated by U+0002, which may also end the cell, or else by any number of spaces; or the cell is
    a JSON array of strings.
    """
    if cell.startswith('["') and cell.endswith('"]'):
        with suppress(ValueError, RecursionError):
            return list(parse_json(cell.encode()))
    if WORD_SEPARATOR in cell:
        return cell.removesuffix(WORD_SEPARATOR).split(WORD_SEPARATOR)
    return [word for word in cell.split(" ") if word]


def is_unspaced(text: str) -> bool:
    """Check whether a text is Chinese or Japanese without spaces between its words."""
    return bool(_UNSPACED.search(text)) and len(split_words(text)) == 1 and not text.startswith("[")


def words_of(text: Any, place: str) -> list[str]:
    """The words of a cell or of a Python value.

    Raises:
        DataError: no words; the message begins with `place`.
    """
    words = split_words(text) if isinstance(text, str) else text
    if not isinstance(words, (list, tuple)) or not all(isinstance(word, str) for word in words):
        raise DataError(
            f"{place}: expected a string of words, a list of words or {{'text_a': …}}, not {text!r}"
        )
    if not words:
        raise DataError(f"{place}: text_a is empty; every row needs at least one word")
    return list(words)
