"""The contract of a metric: it takes predictions beside the truth, one by one, and gives numbers."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, ClassVar

from palm.core.errors import ConfigError, PalmError
from palm.core.registry import Registry
from palm.distributed.group import exhaust

Prediction = Mapping[str, Any]
"""A record, as prediction writes it."""

Truth = Mapping[str, Any]
"""The true values of the same example, as its reader gives them."""


class Metric(ABC):
    """Counts examples one by one; every example once.

    Subclasses are built without arguments, before every evaluation.

    Attributes:
        needs: the fields of the truth that it reads.
        main: the number of `compute` that decides which model is best.
        higher_is_better: whether that number should rise; one that should fall is 0 or more.
        perfect: its highest value, where it should rise.
        worst: its lowest value there.
        examples_per_unit: the number of consecutive examples that are counted as one.
    """

    needs: ClassVar[tuple[str, ...]] = ()
    main: ClassVar[str]
    higher_is_better: ClassVar[bool] = True
    perfect: ClassVar[float] = 1.0
    worst: ClassVar[float] = 0.0
    examples_per_unit: ClassVar[int] = 1

    @abstractmethod
    def update(self, prediction: Prediction, truth: Truth) -> None:
        """Count one example."""

    @abstractmethod
    def compute(self) -> dict[str, float]:
        """The numbers by name, of all examples so far."""

    @classmethod
    def normalized_score(cls, value: float) -> float:
        """The main number on one scale for all metrics: it rises, and 1 is perfect.

        So metrics of different tasks can be averaged: percent are divided by 100, and a number that
        should fall counts as 1 / (1 + number).
        """
        return value / cls.perfect if cls.higher_is_better else 1 / (1 + value)


class Mean(Metric):
    """Base of metrics that are a mean over examples, or over what these consist of.

    Attributes:
        none: the number where there is nothing to count.
    """

    none: ClassVar[float] = math.nan

    def __init__(self) -> None:
        self._sum = 0.0
        self._count = 0

    @abstractmethod
    def terms(self, prediction: Prediction, truth: Truth) -> Sequence[float]:
        """The terms of one example in the mean."""

    def update(self, prediction: Prediction, truth: Truth) -> None:
        terms = self.terms(prediction, truth)
        self._sum += math.fsum(terms)
        self._count += len(terms)

    def compute(self) -> dict[str, float]:
        return {self.main: self._sum / self._count if self._count else self.none}


METRICS: Registry[type[Metric]] = Registry("metric", Metric, "metrics")


def metrics_of(names: Sequence[str]) -> list[type[Metric]]:
    """The metrics of these names, or dotted paths, in order.

    Raises:
        ConfigError: an unknown name, or two metrics that give numbers of the same name.
    """
    problems = []
    metrics: dict[str, type[Metric]] = {}
    for name in names:
        try:
            metric = METRICS[name]
        except PalmError as error:
            problems.append(f"metrics: {error}")
            continue
        # The scores of a task are one mapping: one of the two would replace the other.
        if other := next((other for other in metrics if metrics[other].main == metric.main), None):
            problems.append(f"metrics: {other!r} and {name!r} both give {metric.main!r}; choose one")
        metrics[name] = metric
    if problems:
        raise ConfigError(problems)
    return list(metrics.values())


def metric_problems(names: Sequence[str], truth_names: Iterable[str]) -> list[str]:
    """A line for everything that keeps predictions from being evaluated by these metrics.

    Args:
        names: of metrics, or dotted paths.
        truth_names: the fields of the truth that the reader gives.
    """
    if not names:
        return ["the head has no default metrics; name some with the setting metrics"]
    try:
        metrics = metrics_of(names)
    except ConfigError as error:
        return error.problems
    known = set(truth_names)
    fitting = ", ".join(sorted(name for name in METRICS if known.issuperset(METRICS[name].needs))) or "none"
    return [
        f"the metric {name!r} compares {' and '.join(map(repr, metric.needs))}, which the reader does not "
        f"give; metrics that fit: {fitting}"
        for name, metric in zip(names, metrics, strict=True)
        if not known.issuperset(metric.needs)
    ]


def scores_of(
    metrics: Sequence[type[Metric]],
    pairs: Iterable[tuple[Prediction, Truth]],
    take: Callable[[Iterator[Prediction]], object] = exhaust,
) -> dict[str, float]:
    """The numbers of several metrics over the same examples, those of the first metric first.

    Args:
        metrics: to compute.
        pairs: predictions beside the truth.
        take: takes every prediction, after it was counted.
    """
    counting = [metric() for metric in metrics]

    def counted() -> Iterator[Prediction]:
        for prediction, truth in pairs:
            for metric in counting:
                metric.update(prediction, truth)
            yield prediction

    take(counted())
    return {name: value for metric in counting for name, value in metric.compute().items()}
