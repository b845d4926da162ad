"""Exact match and F1 of Chinese answers, counted as the official script of CMRC 2018 counts."""

from __future__ import annotations

import re
from collections.abc import Sequence

from palm.metrics.base import METRICS
from palm.metrics.squad import AnswerMetric

PUNCTUATION = frozenset("-:_*^/\\~`+=，。：？！“”；’《》·、「」（）－～『』")
"""Characters that do not count."""

_CHINESE = re.compile(r"[\u4e00-\u9fa5]")
_MARK = re.compile(r"(\.{2,}|[\[\](){}<>;@#$%&?!\"«»‘„‒–—―]|,(?!\d))")
_LAST_DOT = re.compile(r"(?<=[^.])\.(?=[\])}>\"' ]*$)")
_QUOTED = re.compile(r"(')?(.+?)('s|'m|'d|'ll|'re|'ve|n't|')?")


@METRICS.register("cmrc")
class Cmrc(AnswerMetric):
    """Exact match and F1 in percent, each with the best of a question's true answers.

    Answers are compared in lower case without punctuation. F1 is that of the longest stretch that
    both have in common, counted in Chinese characters, and in words of other scripts.

    Source: Cui et al., 2019, arXiv:1810.07366, section 3, and its authors' evaluation script.
    """

    def exact(self, predicted: str, true: str) -> float:
        return float(without_punctuation(predicted) == without_punctuation(true))

    def f1(self, predicted: str, true: str) -> float:
        ours = segments(predicted)
        theirs = segments(true)
        common = longest_common_stretch(ours, theirs)
        return 2 * common / (len(ours) + len(theirs)) if common else 0.0


def without_punctuation(text: str) -> str:
    """The text in lower case, without the characters that do not count."""
    return "".join(character for character in text.lower().strip() if character not in PUNCTUATION)


def segments(text: str) -> list[str]:
    """Chinese characters, and the words between them, without punctuation."""
    parts = re.split(f"({_CHINESE.pattern})", without_punctuation(text))
    return [
        segment for part in parts for segment in (part if _CHINESE.fullmatch(part) else treebank_words(part))
    ]


def treebank_words(text: str) -> list[str]:
    """Words and marks of a text that is not Chinese, cut as in the Penn Treebank.

    Numbers keep their points and commas; the last full stop, other marks, quotes and the endings of
    contractions stand alone.
    """
    spaced = _LAST_DOT.sub(" . ", _MARK.sub(r" \1 ", text))
    words = [(word, _QUOTED.fullmatch(word)) for word in spaced.split()]
    return [piece for word, match in words for piece in (match.groups() if match else (word,)) if piece]


def longest_common_stretch(ours: Sequence[str], theirs: Sequence[str]) -> int:
    """The length of the longest run of segments that both have."""
    longest = 0
    before = [0] * (len(theirs) + 1)
    for segment in ours:
        here = [0]
        here += [before[k] + 1 if segment == other else 0 for k, other in enumerate(theirs)]
        longest = max(longest, *here)
        before = here
    return longest
