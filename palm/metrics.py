"""How good predictions are, counted as the official scripts count."""

from __future__ import annotations

import json
import re
import string
from collections import Counter
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import NamedTuple

from palm.entity_metrics import entities as entities
from palm.entity_metrics import entity_scores as entity_scores


class Question(NamedTuple):
    """A question of a SQuAD file and its true answers."""

    text: str
    answers: list[str]


def squad_questions(path: str | Path) -> dict[str, Question]:
    """Question id -> question, of a SQuAD JSON file with answers."""
    data = json.loads(Path(path).read_text(encoding="utf-8"))["data"]
    return {
        question["id"]: Question(question["question"], [answer["text"] for answer in question["answers"]])
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
        `{"exact_match": …, "f1": …, "total": number of questions}`.

    Source: Rajpurkar et al., 2016, arXiv:1606.05250, section 6.1: answers are compared in lower
    case without punctuation and articles, with the best of the true answers.
    """
    questions = squad_questions(path)
    total = max(len(questions), 1)
    exact = sum(_best(_exact, predictions.get(key, ""), true.answers) for key, true in questions.items())
    f1 = sum(_best(_f1, predictions.get(key, ""), true.answers) for key, true in questions.items())
    return {"exact_match": 100 * exact / total, "f1": 100 * f1 / total, "total": len(questions)}


def _normalized(text: str) -> list[str]:
    kept = "".join(character for character in text.lower() if character not in string.punctuation)
    return re.sub(r"\b(a|an|the)\b", " ", kept).split()


def _exact(predicted: str, true: str) -> float:
    return float(_normalized(predicted) == _normalized(true))


def _f1(predicted: str, true: str) -> float:
    ours, theirs = _normalized(predicted), _normalized(true)
    common = sum((Counter(ours) & Counter(theirs)).values())
    return 2 * common / (len(ours) + len(theirs)) if common else 0.0


def _best(score: Callable[[str, str], float], predicted: str, answers: list[str]) -> float:
    return max((score(predicted, true) for true in answers), default=0.0)
