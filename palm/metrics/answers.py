"""Exact match and F1 of answers, as in the official scripts of SQuAD 1.1, SQuAD 2.0 and CMRC 2018."""

from __future__ import annotations

import json
import math
import re
import string
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np

from palm.metrics.base import METRICS, Mean, Metric, Prediction, Truth

PUNCTUATION = frozenset("-:_*^/\\~`+=，。：？！“”；’《》·、「」（）－～『』")
"""Characters that are ignored in the comparison of answers."""

_CHINESE = re.compile(r"[\u4e00-\u9fa5]")
_MARK = re.compile(r"(\.{2,}|[\[\](){}<>;@#$%&?!\"«»‘„‒–—―]|,(?!\d))")
_LAST_DOT = re.compile(r"(?<=[^.])\.(?=[\])}>\"' ]*$)")
_QUOTED = re.compile(r"(')?(.+?)('s|'m|'d|'ll|'re|'ve|n't|')?")


@METRICS.register("squad")
class Squad(Metric):
    """Exact match and word F1 in percent, each for the best matching true answer of a question.

    Answers are compared in lower case, without punctuation and articles.

    Source: Rajpurkar et al., 2016, arXiv:1606.05250, section 6.1.
    """

    needs = ("answers",)
    main = "f1"
    perfect = 100.0

    def __init__(self) -> None:
        self._exact = 0.0
        self._f1 = 0.0
        self._total = 0

    def exact(self, predicted: str, true: str) -> float:
        """1 if the compared words are equal, else 0."""
        return float(counted_words(predicted) == counted_words(true))

    def f1(self, predicted: str, true: str) -> float:
        """F1 of the common words, from 0 to 1; 0 if there are none."""
        ours = counted_words(predicted)
        theirs = counted_words(true)
        common = (Counter(ours) & Counter(theirs)).total()
        return 2 * common / (len(ours) + len(theirs)) if common else 0.0

    def update(self, prediction: Prediction, truth: Truth) -> None:
        self._exact += best(self.exact, prediction["text"], truth["answers"])
        self._f1 += best(self.f1, prediction["text"], truth["answers"])
        self._total += 1

    def compute(self) -> dict[str, float]:
        return {"f1": 100 * self._f1 / self._total, "exact_match": 100 * self._exact / self._total}


class ScoredQuestion(NamedTuple):
    """The scores of one question of SQuAD 2.0.

    Args:
        has_answer: whether the question has a true answer.
        exact: exact match of the predicted answer, 0 or 1.
        f1: F1 of the predicted answer, from 0 to 1.
        candidate: the best predicted answer that is not empty.
        candidate_exact: exact match of the candidate.
        candidate_f1: F1 of the candidate.
        null_odds: higher if "no answer" is more likely; None if the predictions do not have it.
    """

    has_answer: bool
    exact: float
    f1: float
    candidate: str
    candidate_exact: float
    candidate_f1: float
    null_odds: float | None


@METRICS.register("squad2")
class Squad2(Squad):
    """Scores of `Squad` for questions that may have no answer, where only an empty prediction is right.

    Reported for all questions, for those with an answer (`HasAns_…`) and for those without one (`NoAns_…`).
    If predictions have `null_odds`, the best scores that any `null_score_diff_threshold` would reach on these
    questions, and that threshold, are reported too.

    Source: Rajpurkar et al., 2018, arXiv:1806.03822, and its authors' evaluation script.
    """

    def __init__(self) -> None:
        self._questions: list[ScoredQuestion] = []

    def f1(self, predicted: str, true: str) -> float:
        """The F1 of two answers, where two answers without words count as equal."""
        return super().f1(predicted, true) or float(not counted_words(predicted) and not counted_words(true))

    def update(self, prediction: Prediction, truth: Truth) -> None:
        # As in the authors' script: true answers that consist of articles and punctuation are ignored.
        answers = [answer for answer in truth["answers"] if counted_words(answer)] or [""]
        text = prediction["text"]
        candidate = next((one["text"] for one in prediction.get("nbest", ()) if one["text"]), text)
        self._questions.append(
            ScoredQuestion(
                has_answer=bool(truth["answers"]),
                exact=best(self.exact, text, answers),
                f1=best(self.f1, text, answers),
                candidate=candidate,
                candidate_exact=best(self.exact, candidate, answers),
                candidate_f1=best(self.f1, candidate, answers),
                null_odds=prediction.get("null_odds"),
            )
        )

    def compute(self) -> dict[str, float]:
        scores = _percents(self._questions, "")
        for part, has_answer in (("HasAns_", True), ("NoAns_", False)):
            questions = [question for question in self._questions if question.has_answer is has_answer]
            scores |= _percents(questions, part) if questions else {}
        if all(question.null_odds is not None for question in self._questions):
            scores |= self._best_threshold("f1", [question.candidate_f1 for question in self._questions])
            scores |= self._best_threshold(
                "exact", [question.candidate_exact for question in self._questions]
            )
        return scores

    def _best_threshold(self, name: str, scores: Sequence[float]) -> dict[str, float]:
        """The best score over all thresholds, and its threshold; questions below it are answered.

        Starts with no question answered, so those without an answer are right, and then answers the
        questions in the order of their odds.
        """
        current: float = sum(not question.has_answer for question in self._questions)
        highest = current
        threshold = 0.0
        odds = [question.null_odds or 0.0 for question in self._questions]
        for index in np.argsort(odds, kind="stable").tolist():
            question = self._questions[index]
            # Answering a question that has no answer loses its point.
            current += scores[index] if question.has_answer else -float(bool(question.candidate))
            if current > highest:
                highest = current
                threshold = odds[index]
        return {f"best_{name}": 100 * highest / len(scores), f"best_{name}_thresh": threshold}


def _percents(questions: Sequence[ScoredQuestion], part: str) -> dict[str, float]:
    f1 = math.fsum(question.f1 for question in questions)
    exacts = math.fsum(question.exact for question in questions)
    return {f"{part}f1": 100 * f1 / len(questions), f"{part}exact_match": 100 * exacts / len(questions)}


def counted_words(answer: str) -> list[str]:
    """The words that are compared: lower-case, no articles; deleted punctuation leaves no gap."""
    kept = "".join(character for character in answer.lower() if character not in string.punctuation)
    return re.sub(r"\b(a|an|the)\b", " ", kept).split()


def best(score: Callable[[str, str], float], predicted: str, answers: Sequence[str]) -> float:
    """The highest score over the true answers; 0 if there are none."""
    return max((score(predicted, true) for true in answers), default=0.0)


@METRICS.register("cmrc")
class Cmrc(Squad):
    """Exact match and F1 in percent, each for the best matching true answer of a question.

    Answers are compared in lower case without punctuation. F1 is that of the longest common substring,
    counted in Chinese characters and in words of other scripts.

    Source: Cui et al., 2019, arXiv:1810.07366, section 3, and its authors' evaluation script.
    """

    def exact(self, predicted: str, true: str) -> float:
        return float(without_punctuation(predicted) == without_punctuation(true))

    def f1(self, predicted: str, true: str) -> float:
        ours = segments(predicted)
        theirs = segments(true)
        common = longest_common_substring(ours, theirs)
        return 2 * common / (len(ours) + len(theirs)) if common else 0.0


def without_punctuation(text: str) -> str:
    """The text in lower case, without the characters in `PUNCTUATION`."""
    return "".join(character for character in text.lower().strip() if character not in PUNCTUATION)


def segments(text: str) -> list[str]:
    """The Chinese characters and the words between them, without punctuation."""
    parts = re.split(f"({_CHINESE.pattern})", without_punctuation(text))
    return [
        segment for part in parts for segment in (part if _CHINESE.fullmatch(part) else treebank_words(part))
    ]


def treebank_words(text: str) -> list[str]:
    """Words and punctuation of a non-Chinese text, tokenized as in the Penn Treebank.

    Numbers keep their points and commas; the last full stop, other punctuation, quotes and the suffixes of
    contractions are separate tokens.
    """
    spaced = _LAST_DOT.sub(" . ", _MARK.sub(r" \1 ", text))
    words = [(word, _QUOTED.fullmatch(word)) for word in spaced.split()]
    return [token for word, match in words for token in (match.groups() if match else (word,)) if token]


def longest_common_substring(ours: Sequence[str], theirs: Sequence[str]) -> int:
    """The length of the longest common run of segments."""
    longest = 0
    # One row of the table of common suffixes at a time, so memory grows with one text only.
    before = [0] * (len(theirs) + 1)
    for segment in ours:
        here = [0]
        here += [before[k] + 1 if segment == other else 0 for k, other in enumerate(theirs)]
        longest = max(longest, *here)
        before = here
    return longest


@METRICS.register("perplexity")
class Perplexity(Mean):
    """The exponential of the mean negative log-likelihood of the masked words; 1 is perfect."""

    needs = ("words",)
    main = "perplexity"
    higher_is_better = False

    def terms(self, prediction: Prediction, truth: Truth) -> list[float]:  # noqa: ARG002 - the record has the words
        return [-word["log_prob"] for word in prediction["words"]]

    def compute(self) -> dict[str, float]:
        return {self.main: math.exp(super().compute()[self.main])}


@METRICS.register("word_accuracy")
class WordAccuracy(Mean):
    """The fraction of masked words that are predicted correctly."""

    needs = ("words",)
    main = "word_accuracy"

    def terms(self, prediction: Prediction, truth: Truth) -> list[bool]:  # noqa: ARG002 - the record has the words
        return [word["word"] == word["predicted"] for word in prediction["words"]]


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


def squad_scores(
    predictions: Mapping[str, str],
    path: str | Path,
    metric: str = "squad",
    null_odds: Mapping[str, float] | None = None,
) -> dict[str, float]:
    """Score answers to the questions of a SQuAD file.

    Args:
        predictions: question id -> answer, empty for no answer; a question without one counts as wrong.
        path: the SQuAD JSON with the true answers; a question may have several.
        metric: `squad`, `squad2` for questions that may have no answer, or `cmrc` for Chinese answers.
        null_odds: for squad2, question id -> odds that there is no answer, as in `null_odds.json`.

    Returns:
        The numbers of the metric, and `total`, the number of questions.

    Raises:
        PalmError: an unknown metric.
    """
    counting = METRICS[metric]()
    questions = squad_questions(path)
    for key, question in questions.items():
        answer = {"text": predictions.get(key, ""), "null_odds": (null_odds or {}).get(key)}
        counting.update(answer, {"answers": question.answers})
    return counting.compute() | {"total": len(questions)}
