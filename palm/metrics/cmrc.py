"""Exact match and F1 of Chinese answers, counted as the official script of CMRC 2018 counts."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import ClassVar

from palm.metrics.base import METRICS, Metric, Prediction, Truth

PUNCTUATION = frozenset("-:_*^/\\~`+=，。：？！“”；’《》·、「」（）－～『』")
"""Characters that do not count."""

_CHINESE = re.compile(r"[\u4e00-\u9fa5]")
_MARK = re.compile(r"(\.{2,}|[\[\](){}<>;@#$%&?!\"«»‘„‒–—―]|,(?!\d))")
_LAST_DOT = re.compile(r"(?<=[^.])\.(?=[\])}>\"' ]*$)")
_QUOTED = re.compile(r"(')?(.+?)('s|'m|'d|'ll|'re|'ve|n't|')?")


@METRICS.register("cmrc")
class Cmrc(Metric):
    """Exact match and F1 in percent, each with the best of a question's true answers.

    Answers are compared in lower case without punctuation. F1 is that of the longest stretch that
    both have in common, counted in Chinese characters, and in words of other scripts.

    Source: Cui et al., 2019, arXiv:1810.07366, section 3, and its authors' evaluation script.
    """

    needs: ClassVar[tuple[str, ...]] = ("answers",)
    main = "f1"
    perfect = 100.0

    def __init__(self) -> None:
        self._exact = self._f1 = 0.0
        self._total = 0

    def update(self, prediction: Prediction, truth: Truth) -> None:
        text, answers = prediction["text"], truth["answers"]
        self._exact += any(without_punctuation(text) == without_punctuation(answer) for answer in answers)
        self._f1 += max((stretch_f1(text, answer) for answer in answers), default=0.0)
        self._total += 1

    def compute(self) -> dict[str, float]:
        return {"f1": 100 * self._f1 / self._total, "exact_match": 100 * self._exact / self._total}


def stretch_f1(predicted: str, true: str) -> float:
    """F1 of the longest stretch of segments in common; 0 if there is none."""
    ours, theirs = segments(predicted), segments(true)
    common = longest_common_stretch(ours, theirs)
    return 2 * common / (len(ours) + len(theirs)) if common else 0.0


def without_punctuation(text: str) -> str:
    """What exact match compares."""
    return "".join(character for character in text.lower().strip() if character not in PUNCTUATION)


def segments(text: str) -> list[str]:
    """Chinese characters, and the words between them, without punctuation."""
    parts = re.split(f"({_CHINESE.pattern})", without_punctuation(text))
    return [segment for part in parts for segment in (part if _CHINESE.fullmatch(part) else words_of(part))]


def words_of(text: str) -> list[str]:
    """Words and marks of a text that is not Chinese, cut as in the Penn Treebank.

    Numbers keep their points and commas; the last full stop, other marks, quotes and the endings of
    contractions stand alone.
    """
    spaced = _LAST_DOT.sub(" . ", _MARK.sub(r" \1 ", text))
    words = [(word, _QUOTED.fullmatch(word)) for word in spaced.split()]
    return [piece for word, match in words for piece in (match.groups() if match else (word,)) if piece]


def longest_common_stretch(ours: Sequence[str], theirs: Sequence[str]) -> int:
    """How many consecutive segments both have in common at most."""
    longest = 0
    before = [0] * (len(theirs) + 1)
    for segment in ours:
        here = [0]
        here += [before[k] + 1 if segment == other else 0 for k, other in enumerate(theirs)]
        longest, before = max(longest, *here), here
    return longest
