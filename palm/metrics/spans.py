"""Metrics of possibly nested spans and of relations between them, counted by exact match."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping
from typing import Any

from palm.metrics.base import METRICS, Metric, Prediction, Truth
from palm.metrics.tagging import SetF1


@METRICS.register("span_f1")
class SpanF1(SetF1):
    """Precision, recall and F1 of spans of all labels together."""

    needs = ("spans",)
    main = "span_f1"
    name = "span"

    def items(self, record: Mapping[str, Any]) -> set[Any]:
        return {(span["start"], span["end"], span["label"]) for span in record["spans"]}


@METRICS.register("span_label_f1")
class SpanLabelF1(Metric):
    """The numbers of `span_f1` for each label, such as `span_f1:city`, and the mean F1 (macro)."""

    needs = ("spans",)
    main = "span_macro_f1"

    def __init__(self) -> None:
        self._labels: defaultdict[str, SpanF1] = defaultdict(SpanF1)

    def update(self, prediction: Prediction, truth: Truth) -> None:
        for label in {span["label"] for each in (prediction, truth) for span in each["spans"]}:
            own, true = (
                {"spans": [span for span in each["spans"] if span["label"] == label]}
                for each in (prediction, truth)
            )
            self._labels[label].update(own, true)

    def compute(self) -> dict[str, float]:
        scores = {label: self._labels[label].compute() for label in sorted(self._labels)}
        macro = sum(each["span_f1"] for each in scores.values()) / max(1, len(scores))
        named = {f"{name}:{label}": value for label, each in scores.items() for name, value in each.items()}
        return {"span_macro_f1": macro, **named}


@METRICS.register("relation_strict_f1")
class RelationF1(SetF1):
    """Precision, recall and F1 of relations; the label and both labelled spans must be right."""

    needs = ("relations", "spans")
    main = "relation_strict_f1"
    name = "relation_strict"

    def items(self, record: Mapping[str, Any]) -> set[Any]:
        spans = [(span["start"], span["end"], span["label"]) for span in record["spans"]]
        return {(spans[each["head"]], spans[each["tail"]], each["label"]) for each in record["relations"]}


@METRICS.register("relation_boundary_f1")
class RelationBoundaryF1(RelationF1):
    """Precision, recall and F1 of relations, ignoring the labels of spans."""

    main = "relation_boundary_f1"
    name = "relation_boundary"

    def items(self, record: Mapping[str, Any]) -> set[Any]:
        return {(head[:2], tail[:2], label) for head, tail, label in super().items(record)}
