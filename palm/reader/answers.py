"""Spans that a model chose in the windows of one context, merged into answers: pieces of the context."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import Any

import numpy as np
import numpy.typing as npt

from palm.reader.predictions import Record
from palm.reader.rows.rows import Ints


@dataclass(frozen=True)
class ContextWindow:
    """The tokens of one window.

    Args:
        first: the column of its first token in the row.
        char_starts: where in the context every token begins, int[tokens].
        char_ends: where it ends, int[tokens].
        best: whether no other window has more context for the token, bool[tokens].
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
    """The `n_best_size` best different answers, best first, with probabilities among them.

    A span counts where it lies in the context and begins at a token whose best window this is.

    Args:
        context: the text that the windows were cut from.
        windows: of one question, in order.
        spans: for every window its candidates (start column, end column, start logit, end logit).
        n_best_size: how many answers are kept.
        null: start and end logit of there being no answer, which then is one of the answers, an
            empty text, also beyond `n_best_size`.

    Returns:
        `text`, `probability`, `start_logit` and `end_logit` of each; one empty text if no span counts.

    Source: Devlin et al., 2018, the authors' SQuAD program.
    """
    found = [
        piece for window, chosen in zip(windows, spans, strict=True) for piece in _pieces(window, chosen)
    ]
    no_answer = [] if null is None else [(0, 0, *null)]
    found += no_answer
    found.sort(key=lambda piece: piece[2] + piece[3], reverse=True)
    answers = list(islice(_different(context, found), n_best_size))
    if all(answer["text"] for answer in answers):
        answers += _different(context, no_answer)
    answers = answers or [{"text": "", "start_logit": 0.0, "end_logit": 0.0}]
    scores = [answer["start_logit"] + answer["end_logit"] for answer in answers]
    weights = [math.exp(score - max(scores)) for score in scores]
    return [
        {"text": answer["text"], "probability": weight / sum(weights), **answer}
        for answer, weight in zip(answers, weights, strict=True)
    ]


def null_odds(nbest: Sequence[Record], null: tuple[float, float]) -> float:
    """By how much the score of there being no answer is above that of the best answer.

    Source: Devlin et al., 2018, the authors' program for SQuAD 2.0 (`null_odds`).
    """
    scores = (answer["start_logit"] + answer["end_logit"] for answer in nbest if answer["text"])
    return float(sum(null) - max(scores, default=0.0))


def _pieces(window: ContextWindow, spans: Iterable[Sequence[Any]]) -> Iterator[tuple[int, int, float, float]]:
    """(first character, character after the last, start logit, end logit) of the spans that count."""
    length = len(window.best)
    for start_column, end_column, start_logit, end_logit in spans:
        start = start_column - window.first
        end = end_column - window.first
        if 0 <= start <= end < length and window.best[start]:
            first = int(window.char_starts[start])
            beyond = int(window.char_ends[end])
            if first < beyond:  # a blank may be a token
                yield first, beyond, start_logit, end_logit


def _different(context: str, pieces: Iterable[tuple[int, int, float, float]]) -> Iterator[Record]:
    seen = set()
    for start, end, start_logit, end_logit in pieces:
        text = context[start:end]
        if text not in seen:
            seen.add(text)
            yield {"text": text, "start_logit": start_logit, "end_logit": end_logit}
