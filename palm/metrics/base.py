"""The metric interface: it counts pairs of prediction and truth one by one, and computes numbers."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from itertools import accumulate
from statistics import fmean
from typing import Any, ClassVar

from palm.core.component import Registry
from palm.core.errors import ConfigError, PalmError

Prediction = Mapping[str, Any]
"""A record, as written by prediction."""

Truth = Mapping[str, Any]
"""The true values of the same example, as returned by `Reader.gold`."""


class Metric(ABC):
    """Base of metrics, which count every example once.

    Subclasses are constructed without arguments before every evaluation.

    Attributes:
        needs: the fields of the truth that the metric reads.
        main: the name of the number that decides which model is best.
        higher_is_better: whether the main number should rise; one that should fall is never negative.
        perfect: the highest value of a main number that should rise.
        worst: the lowest value of a main number that should rise.
        examples_per_unit: the number of consecutive examples that form one unit.
        baseline_name: what `baseline` scores.
    """

    needs: ClassVar[tuple[str, ...]] = ()
    main: ClassVar[str]
    higher_is_better: ClassVar[bool] = True
    perfect: ClassVar[float] = 1.0
    worst: ClassVar[float] = 0.0
    examples_per_unit: ClassVar[int] = 1
    baseline_name: ClassVar[str] = "always the same answer"

    @abstractmethod
    def update(self, prediction: Prediction, truth: Truth) -> None:
        """Count one example."""

    @abstractmethod
    def compute(self) -> dict[str, float]:
        """The numbers over all examples so far, by name."""

    @classmethod
    def normalized_score(cls, value: float) -> float:
        """The main number on a common scale, where higher is better and 1 is perfect.

        Used to average metrics of different tasks: percentages are divided by 100, and a number that should
        fall becomes 1 / (1 + number).
        """
        return value / cls.perfect if cls.higher_is_better else 1 / (1 + value)

    @classmethod
    def baseline(cls, truths: Sequence[Truth]) -> dict[str, float]:
        """The numbers that need no text, by name: those of the best constant answer; empty if there is none.

        Raises:
            KeyError: the metric needs more than an answer, such as probabilities.
        """
        answers = constant_answers(truths)
        found = [scores_of([cls], [(answer(truth), truth) for truth in truths]) for answer in answers]
        return max(found, key=lambda scores: cls.normalized_score(scores[cls.main]), default={})


class Mean(Metric):
    """Base of metrics that are a mean over examples or over parts of examples.

    Attributes:
        none: the number if there is nothing to count.
    """

    none: ClassVar[float] = math.nan

    def __init__(self) -> None:
        self._sum = 0.0
        self._count = 0

    @abstractmethod
    def terms(self, prediction: Prediction, truth: Truth) -> Sequence[float]:
        """The terms that one example adds to the mean."""

    def update(self, prediction: Prediction, truth: Truth) -> None:
        terms = self.terms(prediction, truth)
        self._sum += math.fsum(terms)
        self._count += len(terms)

    def compute(self) -> dict[str, float]:
        return {self.main: self._sum / self._count if self._count else self.none}


METRICS: Registry[type[Metric]] = Registry("metric", Metric, "metrics")


def metrics_of(names: Sequence[str]) -> list[type[Metric]]:
    """The metrics with these names or dotted paths, in order.

    Raises:
        ConfigError: an unknown name, or two metrics whose main numbers have the same name.
    """
    problems = []
    metrics: dict[str, type[Metric]] = {}
    for name in names:
        try:
            metric = METRICS[name]
        except PalmError as error:
            problems.append(f"metrics: {error}")
            continue
        # The scores of a task are one mapping, so one of the two would replace the other.
        if other := next((other for other in metrics if metrics[other].main == metric.main), None):
            problems.append(f"metrics: {other!r} and {name!r} both compute {metric.main!r}; choose one")
        metrics[name] = metric
    if problems:
        raise ConfigError(problems)
    return list(metrics.values())


def metric_problems(names: Sequence[str], gold_names: Iterable[str]) -> list[str]:
    """The reasons why predictions cannot be evaluated by these metrics, one line each.

    Args:
        names: names or dotted paths of metrics.
        gold_names: the reader's `Reader.gold_names`.
    """
    if not names:
        return ["the head has no default metrics; choose some with the setting metrics"]
    try:
        metrics = metrics_of(names)
    except ConfigError as error:
        return error.problems
    known = set(gold_names)
    fitting = ", ".join(sorted(name for name in METRICS if known.issuperset(METRICS[name].needs))) or "none"
    return [
        f"the metric {name!r} needs {' and '.join(map(repr, metric.needs))}, which the reader does not "
        f"provide; metrics that fit: {fitting}"
        for name, metric in zip(names, metrics, strict=True)
        if not known.issuperset(metric.needs)
    ]


def baseline_scores(metrics: Sequence[type[Metric]], truths: Sequence[Truth]) -> dict[str, float]:
    """Score what needs no text, by the names of the metrics' numbers (see `Metric.baseline`).

    Metrics that need more than that, such as probabilities, are left out, and so are values that are not
    finite.
    """
    found: dict[str, float] = {}
    for metric in metrics:
        with suppress(KeyError):  # it needs probabilities
            found |= metric.baseline(truths)
    return {name: value for name, value in found.items() if math.isfinite(value)}


def constant_answers(truths: Sequence[Truth]) -> Iterator[Callable[[Truth], Prediction]]:
    """Yield the answers that are the same for every text and may be the best: the most frequent label or set
    of labels, the labels that are best as a set, the mean number, the most frequent tag for every word, no
    spans and relations, or no answer. None if truths have none of these.
    """
    known = set.intersection(*(set(truth) for truth in truths)) if truths else set()
    if "label" in known and all(isinstance(truth["label"], int) for truth in truths):
        label = _most_frequent(truth["label"] for truth in truths)
        yield _always(label=label)
    elif "value" in known:
        mean = fmean(truth["value"] for truth in truths)
        yield _always(value=mean)
    elif "label_set" in known:
        whole = _most_frequent(tuple(truth["label_set"]) for truth in truths)
        best = _best_set([truth["label_set"] for truth in truths])
        yield from (_always(labels=labels) for labels in (whole, best))
    elif "labels" in known:
        tag = _most_frequent(tag for truth in truths for tag in truth["labels"])
        yield lambda truth: {"labels": [tag] * len(truth["labels"])}
    elif known & {"spans", "relations", "answers"}:
        yield _always(spans=[], relations=[], text="")


def _always(**answer: Any) -> Callable[[Truth], Prediction]:
    return lambda _: answer


def _most_frequent(values: Iterable[Any]) -> Any:
    return next((value for value, _ in Counter(values).most_common(1)), None)


def _best_set(sets: Sequence[Sequence[int]]) -> list[int]:
    """Return the labels that, as the answer for all texts, have the highest micro F1."""
    counts = Counter(label for labels in sets for label in labels).most_common()
    right = accumulate(count for _, count in counts)
    f1 = [2 * n / (len(sets) * size + sum(map(len, sets))) for size, n in enumerate(right, 1)]
    return [label for label, _ in counts[: max(range(len(f1)), key=f1.__getitem__, default=-1) + 1]]


def scores_of(metrics: Sequence[type[Metric]], pairs: Iterable[tuple[Prediction, Truth]]) -> dict[str, float]:
    """Compute several metrics over the same examples; the numbers of the first metric come first.

    Args:
        metrics: the metrics to compute.
        pairs: each prediction with its truth.
    """
    counting = [metric() for metric in metrics]
    for prediction, truth in pairs:
        for metric in counting:
            metric.update(prediction, truth)
    return {name: value for metric in counting for name, value in metric.compute().items()}
