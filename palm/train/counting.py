"""Counts of predictions against the gold values: confusions, scores of labels, kinds of errors."""

from __future__ import annotations

import heapq
import math
import re
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Hashable, Mapping, Sequence
from itertools import islice, zip_longest
from operator import itemgetter
from statistics import fmean
from types import MappingProxyType
from typing import Any, NamedTuple

from palm.core.errors import PalmError
from palm.metrics import Metric
from palm.metrics.answers import Squad, best
from palm.metrics.base import baseline_scores
from palm.metrics.classification import (
    CalibrationError,
    LabelCalibrationError,
    LabelTally,
)
from palm.metrics.resampling import Pair, score_intervals
from palm.metrics.spans import entities
from palm.reader import Reader, Record
from palm.reader.inspection import label_names
from palm.train.callbacks import ScoredRows

MOST_LABELS = 24
"""Maximum labels of a confusion matrix; a larger one would be unreadable."""

MOST_PROBABLE = 3
"""Number of labels or answers of an example whose probabilities are shown."""

MOST_LISTED = 50
"""Maximum labels whose scores are recorded, the most frequent ones."""

MOST_RESAMPLED = 50_000
"""Number of examples above which scores have no intervals: they would be narrow, and slow to compute."""

MOST_PAIRS = 20
"""Maximum number of most confused pairs."""

LEAST_PROBABILITY = 1e-12
"""The error of a label is finite."""


class Mark(NamedTuple):
    """A part of a text that is labelled, by the gold values or by the model.

    Args:
        start: of its first character.
        end: after its last character.
        kind: `right`, `missed`, `extra` or `wrong label`.
        label: its label.
    """

    start: int
    end: int
    kind: str
    label: str


class Judged(NamedTuple):
    """One prediction compared with its gold value, in readable form.

    Args:
        gold: the gold value.
        predicted: the model's.
        is_right: whether they agree.
        error: how far the prediction is from the gold value; only comparable within a task.
        cell: true and predicted label; empty if there is not one of each.
        labels: the labels that it has to do with.
        probable: the most probable labels, and their probabilities.
        marks: labelled parts of its first text, or of its context.
    """

    gold: str
    predicted: str
    is_right: bool
    error: float
    cell: tuple[str, str] = ("", "")
    labels: Sequence[str] = ()
    probable: Sequence[tuple[str, float]] = ()
    marks: Sequence[Mark] = ()


class Counts(LabelTally, ABC):
    """Compares and counts predictions of one kind.

    Args:
        names: label id -> name.

    Attributes:
        pairs: (gold, predicted) -> count, of labels or words.
        kinds: outcome -> count.
        calibration: counts probabilities; None until there are any.
    """

    calibration: CalibrationError | None = None

    def __init__(self, names: Mapping[int, str] = MappingProxyType({})) -> None:
        super().__init__()
        self.names = dict(names)
        self.pairs = Counter[tuple[str, str]]()
        self.kinds = Counter[str]()

    @abstractmethod
    def judge(self, example: Any, record: Record, gold: Record) -> Judged:
        """Compare one prediction with its gold value, and count it."""

    def calibrate(self, kind: type[CalibrationError], record: Record, gold: Record) -> None:
        """Count the probabilities of one prediction."""
        self.calibration = self.calibration or kind()
        self.calibration.update(record, gold)

    def most_probable(self, probs: Sequence[float]) -> list[tuple[str, float]]:
        """Return the labels with the highest probabilities, and these."""
        found = heapq.nlargest(MOST_PROBABLE, enumerate(probs), key=itemgetter(1))
        return [(self.names.get(label, str(label)), prob) for label, prob in found]

    def label_scores(self) -> dict[str, list[float]]:
        """Return precision, recall, F1, true and predicted occurrences of labels, the most frequent first."""
        return {
            label: [*self.scores(label), self.true[label], self.predicted[label]]
            for label in sorted(self.labels, key=lambda label: -self.true[label])
        }

    def confused(self) -> list[tuple[str, str, int]]:
        """Return the pairs confused most often: true label, predicted label, count."""
        wrong = Counter({pair: n for pair, n in self.pairs.items() if pair[0] != pair[1]})
        return [(*pair, n) for pair, n in wrong.most_common(MOST_PAIRS)]

    def matrix(self) -> tuple[list[str], list[list[int]]]:
        """Return the labels, and for each true label how often each was predicted; empty if too many."""
        return [], []

    def facts(self) -> list[tuple[str, str]]:
        """Return further facts, as names and values."""
        total = max(1, self.kinds.total())
        return [(kind, f"{n} ({100 * n / total:.1f} %)") for kind, n in self.kinds.most_common() if n]


class LabelCounts(Counts):
    """One label per example."""

    def judge(self, example: Any, record: Record, gold: Record) -> Judged:  # noqa: ARG002
        labels = [gold["label"], record["label"]]
        true, predicted = (self.names.setdefault(label, str(label)) for label in labels)
        self.pairs[true, predicted] += 1
        self.count([predicted], [true], [true] if true == predicted else [])
        if isinstance(record.get("logits"), list):
            self.calibrate(CalibrationError, record, gold)
        is_right = true == predicted
        about: dict[str, Any] = {"cell": (true, predicted), "labels": [true, predicted]}
        if not isinstance(probs := record.get("probs"), list):
            return Judged(true, predicted, is_right, float(not is_right), **about)
        error = -math.log(max(probs[gold["label"]], LEAST_PROBABILITY))
        return Judged(true, predicted, is_right, error, probable=self.most_probable(probs), **about)

    def matrix(self) -> tuple[list[str], list[list[int]]]:
        seen = {label for pair in self.pairs for label in pair}
        labels = [name for _, name in sorted(self.names.items()) if name in seen]
        if len(labels) > MOST_LABELS:
            return [], []
        return labels, [[self.pairs[gold, given] for given in labels] for gold in labels]


class SetCounts(Counts):
    """Any number of labels per example."""

    def judge(self, example: Any, record: Record, gold: Record) -> Judged:  # noqa: ARG002
        self.calibrate(LabelCalibrationError, record, gold)
        predicted, true = (
            {self.names.get(label, str(label)) for label in labels}
            for labels in (record["labels"], gold["label_set"])
        )
        self.count(predicted, true, true & predicted)
        error = sum(abs((label in gold["label_set"]) - prob) for label, prob in enumerate(record["probs"]))
        return Judged(
            ", ".join(sorted(true)),
            ", ".join(sorted(predicted)),
            true == predicted,
            error,
            labels=sorted(true | predicted),
            probable=self.most_probable(record["probs"]),
        )

    def facts(self) -> list[tuple[str, str]]:
        return [("thresholds", "fitted to the run's dev rows, else 0.5")]


Item = tuple[Hashable, str]
"""The place of something and its label."""


class ItemCounts(Counts):
    """Base of counts of labelled things at a place: right, with a wrong label, missed, or extra."""

    @abstractmethod
    def items(self, example: Any, record: Record) -> dict[Item, str]:
        """Return the things of a prediction or of gold values -> their readable form."""

    def judge(self, example: Any, record: Record, gold: Record) -> Judged:
        found = self.items(example, record)
        true = self.items(example, gold)
        right = {item: "right" for item in found if item in true}
        self.count(*([label for _, label in each] for each in (found, true, right)))
        outcomes = [(place, label, "right") for place, label in right]
        for place in dict.fromkeys(place for place, _ in (*true, *found)):
            sides = (
                [item[1] for item in side if item[0] == place and item not in right] for side in (true, found)
            )
            for missed, extra in zip_longest(*sides):
                if missed and extra:
                    self.pairs[missed, extra] += 1
                    outcomes.append((place, f"{extra}, not {missed}", "wrong label"))
                else:
                    outcomes.append((place, missed or extra, "missed" if missed else "extra"))
        self.kinds.update(kind for *_, kind in outcomes)
        return Judged(
            ", ".join(true.values()),
            ", ".join(found.values()),
            found.keys() == true.keys(),
            len(found.keys() ^ true.keys()),
            labels=sorted({label for _, label in (*found, *true)}),
            marks=[Mark(*self.characters(example, place), kind, label) for place, label, kind in outcomes],
        )

    def characters(self, example: Any, place: Any) -> tuple[int, int]:
        """Return the first character of a place in the text that is shown, and the one after its last.

        Places are in words, which are shown with a space between them, or in characters of `example.text`.
        """
        start, end = place
        if getattr(example, "text", None) is not None:
            return start, end
        lengths = [len(word) + 1 for word in getattr(example, "words", ())[:end]]
        return sum(lengths[:start]), sum(lengths) - 1

    def facts(self) -> list[tuple[str, str]]:
        """Return the outcomes: shares of the true things, and of the predicted ones for those invented."""
        of_true, of_predicted = (self.true.total(), "true"), (self.predicted.total(), "predicted")
        bases = [
            (kind, n, *(of_predicted if kind == "extra" else of_true)) for kind, n in self.kinds.most_common()
        ]
        return [(kind, f"{n} ({100 * n / max(1, total):.1f} % of {of})") for kind, n, total, of in bases]


class TagCounts(ItemCounts):
    """Entities of one label per word."""

    def items(self, example: Any, record: Record) -> dict[Item, str]:
        words = getattr(example, "words", [])
        places = sorted((each.first, each.last + 1, each.kind) for each in entities(record["labels"]))
        return {((a, b), kind): f"{kind}: {' '.join(words[a:b])}" for a, b, kind in places}


class SpanCounts(ItemCounts):
    """Labelled spans."""

    def items(self, example: Any, record: Record) -> dict[Item, str]:  # noqa: ARG002
        return {
            ((span["start"], span["end"]), span["label"]): f"{span['label']}: {span['text']}"
            for span in record["spans"]
        }


class RelationCounts(ItemCounts):
    """Relations between spans; their place is that of both spans."""

    def items(self, example: Any, record: Record) -> dict[Item, str]:  # noqa: ARG002
        found: dict[Item, str] = {}
        for each in record["relations"]:
            head, tail = (record["spans"][each[end]] for end in ("head", "tail"))
            place = tuple((span["start"], span["end"]) for span in (head, tail))
            found[place, each["label"]] = f"{head['text']} → {each['label']} → {tail['text']}"
        return found

    def characters(self, example: Any, place: Any) -> tuple[int, int]:
        """Return the place of the first of the two spans."""
        return super().characters(example, min(place))


class WordCounts(Counts):
    """Predictions of masked words."""

    def judge(self, example: Any, record: Record, gold: Record) -> Judged:  # noqa: ARG002
        words = [(word["word"], word["predicted"]) for word in record["words"]]
        self.pairs.update(words)
        true, predicted = (", ".join(pair[side] for pair in words) for side in (0, 1))
        log_probs = [word["log_prob"] for word in record["words"] if "log_prob" in word]
        return Judged(true, predicted, true == predicted, -fmean(log_probs) if log_probs else 0.0)


class NumberCounts(Counts):
    """Predictions of real numbers, and their errors."""

    def __init__(self, names: Mapping[int, str] = MappingProxyType({})) -> None:
        super().__init__(names)
        self.values: list[tuple[float, float]] = []

    def judge(self, example: Any, record: Record, gold: Record) -> Judged:  # noqa: ARG002
        error = record["value"] - gold["value"]
        self.values.append((gold["value"], error))
        return Judged(f"{gold['value']:.4g}", f"{record['value']:.4g}", not error, abs(error))

    def facts(self) -> list[tuple[str, str]]:
        errors = sorted(abs(error) for _, error in self.values)
        if not errors:
            return []
        return [
            ("mean error (predicted − true)", f"{fmean(error for _, error in self.values):+.4g}"),
            ("median absolute error", f"{errors[len(errors) // 2]:.4g}"),
            ("95 % of absolute errors are below", f"{errors[int(0.95 * (len(errors) - 1))]:.4g}"),
        ]


class PairCounts(Counts):
    """Scores of right and wrong pairs; each right pair is followed by its wrong one."""

    _score = 0.0

    def judge(self, example: Any, record: Record, gold: Record) -> Judged:  # noqa: ARG002
        score = record["probs"]
        if gold["is_right"]:
            self._score = score
            return Judged("the right pair", f"{score:.3f}", True, 1 - score)
        return Judged(f"below the right pair's {self._score:.3f}", f"{score:.3f}", self._score > score, score)


class RankingCounts(Counts):
    """Rankings of candidates: right if the first one is among the most relevant."""

    def judge(self, example: Any, record: Record, gold: Record) -> Judged:
        first = record["ranking"][0]
        relevance = gold["relevance"]
        most = max(relevance)
        true = example.texts[relevance.index(most)] if most else "(none is relevant)"
        return Judged(true, example.texts[first], relevance[first] == most, most - relevance[first])


class SimilarityCounts(Counts):
    """Cosines of pairs that belong together."""

    def judge(self, example: Any, record: Record, gold: Record) -> Judged:  # noqa: ARG002
        return Judged(gold["pair"][1], f"cosine {record['value']:.3f}", False, 1 - record["value"])


class AnswerCounts(Counts):
    """Answers to questions: kinds of errors."""

    def judge(self, example: Any, record: Record, gold: Record) -> Judged:
        predicted = record["text"]
        answers = gold["answers"]
        score = best(Squad().f1, predicted, answers) if answers else float(not predicted)
        is_exact = bool(best(Squad().exact, predicted, answers)) if answers else not predicted
        self.kinds[_answer_kind(predicted, answers, score, is_exact)] += 1
        true = " | ".join(dict.fromkeys(answers)) or "(no answer)"
        marks = _answer_marks(example, predicted, is_exact)
        nbest = [(each["text"], each["probability"]) for each in record.get("nbest", ())[:MOST_PROBABLE]]
        return Judged(true, predicted or "(no answer)", is_exact, 1 - score, probable=nbest, marks=marks)


def _answer_marks(example: Any, predicted: str, is_exact: bool) -> list[Mark]:
    """Return the true answers of a context, and where the predicted one is nearest to the first of them."""
    true = [each for each in getattr(example, "answers", ()) if each.start is not None]
    found = [Mark(each.start, each.start + len(each.text), "missed", "") for each in true]
    places = [place.start() for place in re.finditer(re.escape(predicted), example.context)] if true else []
    if places and predicted:
        near = min(places, key=lambda place: abs(place - true[0].start))
        kind = "right" if is_exact else "extra"
        found = [Mark(near, near + len(predicted), kind, ""), *(() if is_exact else found)]
    return found


def _answer_kind(predicted: str, answers: Sequence[str], score: float, is_exact: bool) -> str:
    if is_exact:
        return "exactly right"
    if not answers:
        return "answer to an unanswerable question"
    if not predicted:
        return "no answer to an answerable question"
    return "overlaps the true answer" if score > 0 else "wrong answer"


KINDS: dict[str, type[Counts]] = {
    "label": LabelCounts,
    "label_set": SetCounts,
    "labels": TagCounts,
    "relations": RelationCounts,
    "spans": SpanCounts,
    "answers": AnswerCounts,
    "words": WordCounts,
    "value": NumberCounts,
    "is_right": PairCounts,
    "relevance": RankingCounts,
    "pair": SimilarityCounts,
}
"""Name of a gold value -> the class that counts predictions of it."""


def counts_of(reader: Reader) -> Counts:
    """Return empty counts for the kind of gold values that a reader returns.

    Raises:
        PalmError: the reader is a user's own and returns another kind.
    """
    found = next((KINDS[name] for name in reader.gold_names if name in KINDS), None)
    if found is None:
        raise PalmError(
            f"the truths of {type(reader).__name__} have {', '.join(reader.gold_names) or 'no fields'}; the "
            f"report needs one of {', '.join(KINDS)}"
        )
    return found(label_names(reader))


def scored_rows(
    metrics: Sequence[type[Metric]], counts: Counts | None, pairs: Sequence[Pair], is_quick: bool = True
) -> ScoredRows:
    """Return what scores stand beside.

    Args:
        metrics: the metrics of the scores.
        counts: the counts of the same predictions; None for a reader whose gold values they do not know.
        pairs: predictions and gold values.
        is_quick: intervals are of 200 resamples of the rows, else of up to 1000 (see `score_intervals`).
    """
    intervals = {
        name: list(ends)
        for metric in (metrics if 0 < len(pairs) <= MOST_RESAMPLED else ())
        for name, ends in score_intervals(metric, pairs, is_quick).items()
    }
    labels = counts.label_scores() if counts is not None else {}
    return ScoredRows(
        rows=len(pairs),
        baseline=baseline_scores(metrics, [gold for _, gold in pairs]),
        intervals=intervals,
        labels=dict(islice(labels.items(), MOST_LISTED)),
        averages=counts.averages() if counts is not None else {},
    )


def counted_rows(
    reader: Reader, metrics: Sequence[type[Metric]], examples: Sequence[Any], pairs: Sequence[Pair]
) -> ScoredRows:
    """Return what the scores of a reader's examples stand beside."""
    try:
        counts = counts_of(reader)
    except PalmError:  # the reader is a user's own and returns other gold values
        return scored_rows(metrics, None, pairs)
    for example, (record, gold) in zip(examples, pairs, strict=True):
        counts.judge(example, dict(record), dict(gold))
    return scored_rows(metrics, counts, pairs)
