"""Counts of the texts of a file that encoding cuts or cannot read, and remarks on them."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

from palm.reader.text.tokenizer import Tokenizer

MAX_UNKNOWN = 0.1
"""The fraction of unknown tokens up to which there is no remark. Texts in another language than their
vocabulary's, or in capitals for a vocabulary of lower-case words, have several times as many."""


MIN_LETTERS = 2.0
"""Letters of a token, on average, below which the vocabulary is not one of the language: 4 are usual."""


class Remark(NamedTuple):
    """A likely mistake of the user: its kind in one word, the finding, and the remedy."""

    code: str
    found: str
    remedy: str


class TextFacts:
    """Counts over the texts of one file.

    Attributes:
        tokens: of all texts, special ones not counted.
        unknown: those that stand for what the vocabulary cannot write.
        letters: of the texts in ASCII, and `pieces` their tokens.
        texts: how many there were.
        capitals: texts with a capital letter, where the vocabulary has none and texts keep theirs.
        empty: texts of which no token is left.
        cut: what is cut (`rows`, `questions`, `spans`) -> how many of how many, and the setting for it.
        gaps: contexts whose windows pass by each other without overlap, and the largest window.
    """

    def __init__(self) -> None:
        self.tokens = 0
        self.unknown = 0
        self.letters = 0
        self.pieces = 0
        self.texts = 0
        self.capitals = 0
        self.empty = 0
        self.cut: dict[str, tuple[int, int, str]] = {}
        self.gaps = 0
        self.window = 0

    def read(self, tokenizer: Tokenizer, texts: Sequence[str], ids: Iterable[Sequence[int]]) -> None:
        """Count texts and their tokens."""
        unknown = tokenizer.unk_id
        before = self.tokens
        for tokens in ids:
            self.tokens += len(tokens)
            self.unknown += tokens.count(unknown)
            self.empty += not len(tokens)
        self.texts += len(texts)
        if all(map(str.isascii, texts)):  # in other scripts a letter may be a word
            self.letters += sum(len("".join(text.split())) for text in texts)
            self.pieces += self.tokens - before
        if tokenizer.lacks_capitals:
            self.capitals += sum(text != text.lower() for text in texts)

    def shortened(self, what: str, count: int, total: int, setting: str) -> None:
        """`count` of `total` rows or questions are cut by a setting."""
        before = self.cut.get(what, (0, 0, setting))
        self.cut[what] = (before[0] + count, before[1] + total, setting)

    def remarks(self, vocab_path: Path) -> Iterator[Remark]:
        """Every likely mistake, with its remedy."""
        if self.capitals:
            yield Remark(
                "case",
                f"{_fraction(self.capitals, self.texts)} texts have capital letters, and the vocabulary "
                f"{vocab_path} has words in lower case only",
                "set do_lower_case: True",
            )
        elif self.unknown > MAX_UNKNOWN * self.tokens:
            yield Remark(
                "unknown",
                f"{_fraction(self.unknown, self.tokens)} tokens are unknown to the vocabulary {vocab_path}",
                "is it one for these texts, and do_lower_case what it needs?",
            )
        elif self.letters < MIN_LETTERS * self.pieces:
            finding = (
                f"a token has {self.letters / self.pieces:.1f} letters on average, so words are in pieces"
            )
            yield Remark("pieces", finding, f"is {vocab_path} the vocabulary of these texts?")
        if self.empty:
            found = f"of {_fraction(self.empty, self.texts)} texts no token is left"
            yield Remark("empty", found, "look for stray characters in them")
        for what, (count, total, setting) in self.cut.items():
            if count:
                found = f"{_fraction(count, total)} {what} do not fit whole"
                yield Remark("truncation", found, f"raise {setting}")
        if self.gaps:
            yield Remark(
                "gaps",
                f"doc_stride is above the window of {self.window} tokens, so that the windows of "
                f"{self.gaps} contexts do not overlap, and answers at their edges are lost",
                "lower doc_stride",
            )

    def warnings(self, path: Path, vocab_path: Path) -> Iterator[str]:
        """A line for every remark on a file."""
        for remark in self.remarks(vocab_path):
            yield f"{path}: {remark.found}; {remark.remedy}"


def _fraction(count: int, total: int) -> str:
    return f"{count} of {total} ({100 * count / total:.1f} %)"
