"""Scores of predicted answers against a SQuAD file with the true answers."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import NamedTuple

from palm.metrics.answers import Cmrc, Squad, Squad2
from palm.metrics.base import Metric


class Question(NamedTuple):
    """A question of a SQuAD file and its true answers."""

    text: str
    answers: list[str]


def squad_questions(path: str | Path) -> dict[str, Question]:
    """Question id -> question of a SQuAD JSON file with answers."""
    data = json.loads(Path(path).read_text(encoding="utf-8"))["data"]
    return {
        str(question["id"]): Question(
            question["question"], [answer["text"] for answer in question["answers"]]
        )
        for article in data
        for paragraph in article["paragraphs"]
        for question in paragraph["qas"]
    }


def squad_scores(predictions: Mapping[str, str], path: str | Path) -> dict[str, float]:
    """Exact match and F1 of answers to the questions of a SQuAD file, in percent.

    Args:
        predictions: question id -> answer; a question without one counts as wrong.
        path: the SQuAD JSON with the true answers; a question may have several.

    Returns:
        `{"exact_match": …, "f1": …, "total": number of questions}`; see `Squad`.
    """
    return _scored(Squad(), predictions, path)


def squad2_scores(
    predictions: Mapping[str, str], path: str | Path, null_odds: Mapping[str, float] | None = None
) -> dict[str, float]:
    """Scores of answers to questions that may have no answer; see `Squad2`.

    Args:
        predictions: question id -> answer, empty for no answer.
        path: the SQuAD JSON with the true answers.
        null_odds: question id -> odds that there is no answer, as in `null_odds.json`.
    """
    return _scored(Squad2(), predictions, path, null_odds)


def cmrc_scores(predictions: Mapping[str, str], path: str | Path) -> dict[str, float]:
    """Scores of Chinese answers, see `Cmrc`; arguments as in `squad_scores`."""
    return _scored(Cmrc(), predictions, path)


def _scored(
    metric: Metric,
    predictions: Mapping[str, str],
    path: str | Path,
    null_odds: Mapping[str, float] | None = None,
) -> dict[str, float]:
    questions = squad_questions(path)
    for key, question in questions.items():
        answer = {"text": predictions.get(key, ""), "null_odds": (null_odds or {}).get(key)}
        metric.update(answer, {"answers": question.answers})
    return metric.compute() | {"total": len(questions)}
