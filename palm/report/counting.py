"""Counts of predictions against the truth: confusions, scores of labels, lengths of answers."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from types import MappingProxyType
from typing import Any, ClassVar, NamedTuple

from palm.core.errors import PalmError
from palm.metrics.answers import best, counted_words, exact, word_f1
from palm.metrics.calibration import CalibrationError, LabelCalibrationError, WordCalibrationError
from palm.metrics.classification import LabelTally
from palm.metrics.tagging import Entity, entities
from palm.reader import Reader, Record
from palm.reader.inspection import label_names

MOST_LABELS = 24
"""Maximum labels of a confusion matrix; a larger one would be unreadable."""

MOST_PAIRS = 20
"""Maximum number of most confused pairs."""

ScoreGroup = tuple[str, Sequence[tuple[str, int, float]]]
"""A title, and ranges with their number of examples and mean score."""


@dataclass(frozen=True)
class LabelScore:
    """Precision and recall of one label.

    Args:
        label: its name.
        precision: the share of its predictions that are right.
        recall: the share of its true occurrences that were predicted.
        f1: the harmonic mean of both.
        support: how often it is true.
        predicted: how often it was predicted.
    """

    label: str
    precision: float
    recall: float
    f1: float
    support: int
    predicted: int


class Judged(NamedTuple):
    """One prediction compared with its truth, in readable form.

    Args:
        gold: the true answer.
        predicted: the model's answer.
        is_right: whether they agree.
    """

    gold: str
    predicted: str
    is_right: bool


class Counts(LabelTally, ABC):
    """Compares and counts predictions of one kind.

    Args:
        names: label id -> name.

    Attributes:
        pairs: (gold, predicted) -> count, of whatever is compared.
        kinds: outcome -> count, for things that are found or missed.
        numbers: values of every example that a subclass needs for `facts`.
        calibration: counts probabilities; None until there are any.
    """

    calibration: CalibrationError | None = None

    def __init__(self, names: Mapping[int, str] = MappingProxyType({})) -> None:
        super().__init__()
        self.names = dict(names)
        self.pairs = Counter[tuple[str, str]]()
        self.kinds = Counter[str]()
        self.numbers: list[Any] = []

    @abstractmethod
    def judge(self, example: Any, record: Record, truth: Record) -> Judged:
        """Compare one prediction with its truth, and count it."""

    def calibrate(self, kind: type[CalibrationError], record: Record, truth: Record) -> None:
        """Count the probabilities of one prediction."""
        self.calibration = self.calibration or kind()
        self.calibration.update(record, truth)

    def label_scores(self) -> list[LabelScore]:
        """Return the scores of every label, the most frequent first; none if there are no labels."""
        labels = sorted(self.labels, key=lambda label: -self.true[label])
        return [
            LabelScore(label, *self.scores(label), self.true[label], self.predicted[label])
            for label in labels
        ]

    def confused(self) -> list[tuple[str, str, int]]:
        """Return the pairs confused most often: true label, predicted label, count."""
        wrong = Counter({pair: n for pair, n in self.pairs.items() if pair[0] != pair[1]})
        return [(*pair, n) for pair, n in wrong.most_common(MOST_PAIRS)]

    def baseline(self) -> float | None:
        """Return the share of the most frequent true label; None if examples have no single label."""
        return None

    def matrix(self) -> tuple[list[str], list[list[int]]]:
        """Return the labels, and for each true label how often each was predicted; empty if too many."""
        return [], []

    def facts(self) -> list[tuple[str, str]]:
        """Return further facts, as names and values."""
        return []

    def reliability(self) -> list[tuple[str, list[tuple[float, float]]]]:
        """Return curves of how often predictions of each probability are right; none without them."""
        return [] if self.calibration is None else self.calibration.curves()

    def groups(self, windows: Sequence[int]) -> list[ScoreGroup]:  # noqa: ARG002
        """Return mean scores of the predictions by size of the examples.

        Args:
            windows: how many rows every example became, in order.
        """
        return []


class LabelCounts(Counts):
    """One label per example."""

    def judge(self, example: Any, record: Record, truth: Record) -> Judged:  # noqa: ARG002
        gold, predicted = (
            self.names.setdefault(each["label"], str(each["label"])) for each in (truth, record)
        )
        self.pairs[gold, predicted] += 1
        self.count([predicted], [gold], [gold] if gold == predicted else [])
        probs = record.get("probs")
        if isinstance(record.get("logits"), list):
            self.calibrate(CalibrationError, record, truth)
        certain = f" ({100 * probs[record['label']]:.0f} %)" if isinstance(probs, list) else ""
        return Judged(gold, f"{predicted}{certain}", gold == predicted)

    def baseline(self) -> float | None:
        return max(self.true.values()) / self.true.total() if self.true else None

    def matrix(self) -> tuple[list[str], list[list[int]]]:
        seen = {label for pair in self.pairs for label in pair}
        labels = [name for _, name in sorted(self.names.items()) if name in seen]
        if len(labels) > MOST_LABELS:
            return [], []
        return labels, [[self.pairs[gold, given] for given in labels] for gold in labels]


class SetCounts(Counts):
    """Any number of labels per example: scores of each label, and the mean number of labels."""

    def judge(self, example: Any, record: Record, truth: Record) -> Judged:  # noqa: ARG002
        self.calibrate(LabelCalibrationError, record, truth)
        predicted, gold = (
            {self.names.get(label, str(label)) for label in labels}
            for labels in (record["labels"], truth["label_set"])
        )
        self.count(predicted, gold, gold & predicted)
        return Judged(", ".join(sorted(gold)), ", ".join(sorted(predicted)), gold == predicted)

    def facts(self) -> list[tuple[str, str]]:
        gold, predicted = (counts.total() / max(1, self.total) for counts in (self.true, self.predicted))
        return [("mean number of true labels", f"{gold:.2f}"), ("of predicted labels", f"{predicted:.2f}")]


class TagCounts(Counts):
    """One label per word: confusions of words, scores of whole entities."""

    def judge(self, example: Any, record: Record, truth: Record) -> Judged:
        predicted = record["labels"]
        gold = truth["labels"]
        self.pairs.update(zip(gold, predicted, strict=True))
        found = set(entities(predicted))
        expected = set(entities(gold))
        self.count(*([one.kind for one in each] for each in (found, expected, found & expected)))
        if "logits" in record:
            self.calibrate(WordCalibrationError, record, truth)
        words = getattr(example, "words", [])
        missed = _entity_list(expected - found, words)
        invented = _entity_list(found - expected, words)
        return Judged(missed, invented, predicted == gold)


class KindCounts(Counts):
    """Base of counts of things that are found or missed; `things` is the plural noun for them."""

    things: ClassVar[str]

    def facts(self) -> list[tuple[str, str]]:
        total = max(1, self.true.total())
        shares = {kind: f"{n} ({100 * n / total:.1f} %)" for kind, n in self.kinds.most_common()}
        return [(f"{self.things}: {kind}", share) for kind, share in shares.items()]


class SpanCounts(KindCounts):
    """Any number of labelled spans: right, missed, invented, or with a wrong label or wrong boundaries."""

    things = "spans"

    def judge(self, example: Any, record: Record, truth: Record) -> Judged:  # noqa: ARG002
        found, gold = ({(s["start"], s["end"]): s for s in each["spans"]} for each in (record, truth))
        both = [(gold[place]["label"], found[place]["label"]) for place in gold.keys() & found.keys()]
        self.pairs.update(both)
        given, true = ([span["label"] for span in each.values()] for each in (found, gold))
        self.count(given, true, [label for label, other in both if label == other])
        self.kinds.update(_span_kind(place, span["label"], found) for place, span in gold.items())
        lost = gold.keys() - found.keys()
        strange = found.keys() - gold.keys()
        self.kinds["invented"] += sum(not any(map(partial(_overlap, one), lost)) for one in strange)
        wrong = [
            [span for place, span in mine.items() if other.get(place, {}).get("label") != span["label"]]
            for mine, other in ((gold, found), (found, gold))
        ]
        missed, invented = (", ".join(f"{s['label']}: {s['text']}" for s in spans) for spans in wrong)
        return Judged(missed, invented, not any(wrong))


class RelationCounts(KindCounts):
    """Relations between spans: right, missed, invented, reversed, with a wrong label, or without a span."""

    things = "relations"

    def judge(self, example: Any, record: Record, truth: Record) -> Judged:  # noqa: ARG002
        found, gold = (_relations(each) for each in (record, truth))
        self.count(*([label for *_, label in each] for each in (found, gold, found.keys() & gold)))
        wrong = [each for each in found if each not in gold]
        missed = [each for each in gold if each not in found]
        self.pairs.update((one[2], other[2]) for one in missed for other in wrong if one[:2] == other[:2])
        spans = {(span["start"], span["end"]) for span in record["spans"]}
        self.kinds.update(_relation_kind(each, found, spans) for each in gold)
        pairs = {frozenset(each[:2]) for each in gold}
        self.kinds["invented"] += sum(frozenset(each[:2]) not in pairs for each in wrong)
        listed = [", ".join(map(each.__getitem__, own)) for each, own in ((gold, missed), (found, wrong))]
        return Judged(listed[0], listed[1], not missed + wrong)


Place = tuple[int, int]


def _relations(record: Record) -> dict[tuple[Place, Place, str], str]:
    """Return head, tail and label of each relation -> its readable form."""
    spans = record["spans"]
    found = {}
    for each in record["relations"]:
        head, tail = (spans[each[end]] for end in ("head", "tail"))
        places = [(span["start"], span["end"]) for span in (head, tail)]
        found[places[0], places[1], each["label"]] = f"{head['text']} → {each['label']} → {tail['text']}"
    return found


def _relation_kind(
    relation: tuple[Place, Place, str], found: Collection[tuple[Place, Place, str]], spans: set[Place]
) -> str:
    """Name the outcome for a true relation, given the relations and the spans that were found."""
    head, tail, label = relation
    if relation in found:
        return "right"
    if not {head, tail} <= spans:
        return "a span was not found"
    if (tail, head, label) in found:
        return "reversed"
    return "wrong label" if (head, tail) in {each[:2] for each in found} else "missed"


def _span_kind(place: Place, label: str, found: Mapping[Place, Any]) -> str:
    """Name the outcome for a true span, given the spans that were found."""
    if place in found:
        return "right" if found[place]["label"] == label else "wrong label"
    overlapping = [span["label"] for other, span in found.items() if _overlap(place, other)]
    return "wrong boundaries" if label in overlapping else "missed"


def _overlap(one: Place, other: Place) -> bool:
    return one[0] < other[1] and other[0] < one[1]


def _entity_list(found: set[Entity], words: Sequence[str]) -> str:
    """Format entities with their words, in order: `city: new york, day: monday`."""
    ordered = sorted(found, key=lambda entity: entity.first)
    return ", ".join(f"{kind}: {' '.join(words[first : last + 1])}" for kind, first, last in ordered)


class WordCounts(Counts):
    """Predictions of masked words."""

    def judge(self, example: Any, record: Record, truth: Record) -> Judged:  # noqa: ARG002
        words = [(word["word"], word["predicted"]) for word in record["words"]]
        self.pairs.update(words)
        gold, predicted = (", ".join(pair[side] for pair in words) for side in (0, 1))
        return Judged(gold, predicted, all(word == guess for word, guess in words))


class NumberCounts(Counts):
    """Predictions of real numbers, and their errors."""

    def judge(self, example: Any, record: Record, truth: Record) -> Judged:  # noqa: ARG002
        self.numbers.append(record["value"] - truth["value"])
        return Judged(f"{truth['value']:.4g}", f"{record['value']:.4g}", is_right=False)

    def facts(self) -> list[tuple[str, str]]:
        errors = sorted(abs(error) for error in self.numbers)
        if not errors:
            return []
        return [
            ("mean error (predicted − true)", f"{sum(self.numbers) / len(self.numbers):+.4g}"),
            ("median absolute error", f"{errors[len(errors) // 2]:.4g}"),
            ("95 % of absolute errors are below", f"{errors[int(0.95 * (len(errors) - 1))]:.4g}"),
        ]


class PairCounts(Counts):
    """Scores of right and wrong pairs; each right pair is followed by its wrong one."""

    _score = 0.0

    def judge(self, example: Any, record: Record, truth: Record) -> Judged:  # noqa: ARG002
        if truth["is_right"]:
            self._score = record["probs"]
            return Judged("the right pair", f"{self._score:.3f}", is_right=True)
        is_right = self._score > record["probs"]
        return Judged(f"below the right pair's {self._score:.3f}", f"{record['probs']:.3f}", is_right)


class RankingCounts(Counts):
    """Rankings of candidates: right if the first one is among the most relevant."""

    def judge(self, example: Any, record: Record, truth: Record) -> Judged:
        first = record["ranking"][0]
        relevance = truth["relevance"]
        best = max(relevance)
        gold = example.texts[relevance.index(best)] if best else "(none is relevant)"
        return Judged(gold, example.texts[first], relevance[first] == best)


class SimilarityCounts(Counts):
    """Cosines of pairs that belong together."""

    def judge(self, example: Any, record: Record, truth: Record) -> Judged:  # noqa: ARG002
        return Judged(truth["pair"][1], f"cosine {record['value']:.3f}", is_right=False)


class AnswerCounts(Counts):
    """Answers to questions: kinds of errors, lengths, and F1 by length."""

    def judge(self, example: Any, record: Record, truth: Record) -> Judged:  # noqa: ARG002
        predicted = record["text"]
        answers = truth["answers"]
        score = best(word_f1, predicted, answers) if answers else float(not predicted)
        is_exact = bool(best(exact, predicted, answers)) if answers else not predicted
        kind = "overlaps the true answer" if score > 0 else "wrong answer"
        if is_exact:
            kind = "exactly right"
        elif not answers:
            kind = "answer to an unanswerable question"
        elif not predicted:
            kind = "no answer to an answerable question"
        self.kinds[kind] += 1
        true_length = min((len(counted_words(answer)) for answer in answers), default=0)
        self.numbers.append((true_length, len(counted_words(predicted)), score))
        gold = " | ".join(dict.fromkeys(answers)) or "(no answer)"
        return Judged(gold, predicted or "(no answer)", is_exact)

    def facts(self) -> list[tuple[str, str]]:
        total = len(self.numbers)
        if not total:
            return []
        kinds = [(kind, f"{n} of {total} ({100 * n / total:.1f} %)") for kind, n in self.kinds.most_common()]
        means = [sum(row[side] for row in self.numbers) / total for side in (0, 1)]
        return [
            *kinds,
            ("mean words of a true answer", f"{means[0]:.2f}"),
            ("mean words of a predicted answer", f"{means[1]:.2f}"),
        ]

    def groups(self, windows: Sequence[int]) -> list[ScoreGroup]:
        lengths = [(length, score) for length, _, score in self.numbers]
        by_windows = [(count, score) for count, (*_, score) in zip(windows, self.numbers, strict=True)]
        return [
            ("F1 by words of the true answer", grouped(lengths, (0, 1, 2, 3, 5, 9))),
            ("F1 by windows of the context", grouped(by_windows, (1, 2, 3, 5, 9))),
        ]


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
"""Name of a truth -> the class that counts predictions of it."""


def counts_of(reader: Reader) -> Counts:
    """Return empty counts for the kind of truth that a reader returns.

    Raises:
        PalmError: the reader is a user's own and returns another kind of truth.
    """
    found = next((KINDS[name] for name in reader.gold_names if name in KINDS), None)
    if found is None:
        raise PalmError(
            f"the truths of {type(reader).__name__} have {', '.join(reader.gold_names) or 'no fields'}; the "
            f"report needs one of {', '.join(KINDS)}"
        )
    return found(label_names(reader))


def grouped(rows: Sequence[tuple[int, float]], bounds: Sequence[int]) -> list[tuple[str, int, float]]:
    """Count rows by ranges of their size, with their mean score.

    Args:
        rows: size and score of each.
        bounds: the least size of each range, ascending; the last range has no upper bound.
    """
    found = []
    for low, high in zip(bounds, [*bounds[1:], None], strict=True):
        these = [score for size, score in rows if low <= size and (high is None or size < high)]
        if these:
            name = f"{low} or more" if high is None else str(low) if high == low + 1 else f"{low}–{high - 1}"
            found.append((name, len(these), sum(these) / len(these)))
    return found
