"""Merge the spans that a model predicts in the windows of one context into answers."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import Any

import numpy as np
import numpy.typing as npt

from palm.reader.predictions import Record
from palm.reader.rows import Ints

Span = tuple[int, int, float, float]
"""First character, end character (exclusive), start logit and end logit."""


@dataclass(frozen=True)
class ContextWindow:
    """The tokens of one window.

    Args:
        first: the column of its first token in the row.
        char_starts: the start of every token in the context, in characters, int[tokens].
        char_ends: the end of every token, exclusive, int[tokens].
        best: True for tokens that have no more context in any other window, bool[tokens].
    """

    first: int
    char_starts: Ints
    char_ends: Ints
    best: npt.NDArray[np.bool_]


def best_answers(
    context: str,
    windows: Sequence[ContextWindow],
    spans: Sequence[Sequence[Any]],
    n_best_size: int,
    null: tuple[float, float] | None = None,
) -> list[Record]:
    """The `n_best_size` best distinct answers, best first, with probabilities that sum to 1.

    A span is valid if it lies in the context and starts at a token for which this window is the best.

    Args:
        context: the text that the windows were cut from.
        windows: the windows of one question, in order.
        spans: the candidates of every window (start column, end column, start logit, end logit).
        n_best_size: the number of answers to keep.
        null: the start and end logit of "no answer"; if given, an empty text is always one of the answers,
            even in excess of `n_best_size`.

    Returns:
        `text`, `probability`, `start_logit` and `end_logit` of each; one empty text if no span is valid.

    Source: Devlin et al., 2018, the authors' SQuAD program.
    """
    found = [
        span for window, chosen in zip(windows, spans, strict=True) for span in _valid_spans(window, chosen)
    ]
    no_answer = [] if null is None else [(0, 0, *null)]
    found += no_answer
    found.sort(key=lambda span: span[2] + span[3], reverse=True)
    answers = list(islice(_distinct(context, found), n_best_size))
    if all(answer["text"] for answer in answers):
        answers += _distinct(context, no_answer)
    answers = answers or [{"text": "", "start_logit": 0.0, "end_logit": 0.0}]
    scores = [answer["start_logit"] + answer["end_logit"] for answer in answers]
    weights = [math.exp(score - max(scores)) for score in scores]
    return [
        {"text": answer["text"], "probability": weight / sum(weights), **answer}
        for answer, weight in zip(answers, weights, strict=True)
    ]


def null_odds(nbest: Sequence[Record], null: tuple[float, float]) -> float:
    """The score of "no answer" minus that of the best answer.

    Source: Devlin et al., 2018, the authors' program for SQuAD 2.0 (`null_odds`).
    """
    scores = (answer["start_logit"] + answer["end_logit"] for answer in nbest if answer["text"])
    return float(sum(null) - max(scores, default=0.0))


def _valid_spans(window: ContextWindow, spans: Iterable[Sequence[Any]]) -> Iterator[Span]:
    length = len(window.best)
    for start_column, end_column, start_logit, end_logit in spans:
        start = start_column - window.first
        end = end_column - window.first
        if 0 <= start <= end < length and window.best[start]:
            first = int(window.char_starts[start])
            last = int(window.char_ends[end])
            if first < last:  # a space may be a token
                yield first, last, start_logit, end_logit


def _distinct(context: str, spans: Iterable[Span]) -> Iterator[Record]:
    seen = set()
    for start, end, start_logit, end_logit in spans:
        text = context[start:end]
        if text not in seen:
            seen.add(text)
            yield {"text": text, "start_logit": start_logit, "end_logit": end_logit}
