"""Counts of truncated and poorly tokenized texts in a file, and remarks on them."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

from palm.reader.text.tokenizer import Tokenizer

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
        gaps: contexts whose windows of up to `window` tokens do not overlap.
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
        self.gaps = 0
        self.window = 0

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
                f"{_fraction(self.capitals, self.texts)} texts have capital letters, but the vocabulary "
                f"{vocab_path} only has lower-case words",
                "set do_lower_case: True",
            )
        elif self.unknown > MAX_UNKNOWN * self.tokens:
            yield Remark(
                "unknown",
                f"{_fraction(self.unknown, self.tokens)} tokens are not in the vocabulary {vocab_path}",
                "check that it is the vocabulary for these texts, and that do_lower_case is right for it",
            )
        elif self.letters < MIN_LETTERS * self.ascii_tokens:
            mean = self.letters / self.ascii_tokens
            found = f"tokens have {mean:.1f} letters on average, so words are split into many subwords"
            yield Remark("pieces", found, f"check that {vocab_path} is the vocabulary for these texts")
        if self.empty:
            found = f"{_fraction(self.empty, self.texts)} texts have no tokens"
            yield Remark("empty", found, "check them for stray characters")
        for what, (count, total, setting) in self.cut.items():
            if count:
                found = f"{_fraction(count, total)} {what} are too long and were cut"
                yield Remark("truncation", found, f"raise {setting}")
        if self.gaps:
            yield Remark(
                "gaps",
                f"doc_stride is larger than the window of {self.window} tokens, so the windows of "
                f"{self.gaps} contexts do not overlap and answers across their edges are lost",
                "lower doc_stride",
            )

    def warnings(self, path: Path, vocab_path: Path) -> Iterator[str]:
        """The remarks on a file, one line each."""
        for remark in self.remarks(vocab_path):
            yield f"{path}: {remark.found}; {remark.remedy}"


def _fraction(count: int, total: int) -> str:
    return f"{count} of {total} ({100 * count / total:.1f} %)"
