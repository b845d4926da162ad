"""Metrics of possibly nested spans and of relations between them, counted by exact match."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from palm.metrics.base import METRICS
from palm.metrics.tagging import SetF1


@METRICS.register("span_f1")
class SpanF1(SetF1):
    """Precision, recall and F1 of spans of all labels together."""

    needs = ("spans",)
    main = "span_f1"
    name = "span"

    def items(self, record: Mapping[str, Any]) -> set[Any]:
        return {(span["label"], span["start"], span["end"]) for span in record["spans"]}


@METRICS.register("span_label_f1")
class SpanLabelF1(SpanF1):
    """The numbers of `span_f1` for each label, such as `span_f1:city`, and the mean F1 (macro)."""

    main = "span_macro_f1"

    def compute(self) -> dict[str, float]:
        scores = {self.main: self.mean_f1()}
        for label in self.labels:
            scores |= self.named_scores(label, f":{label}")
        return scores


@METRICS.register("relation_strict_f1")
class RelationF1(SetF1):
    """Precision, recall and F1 of relations; the label and both labelled spans must be right."""

    needs = ("relations", "spans")
    main = "relation_strict_f1"
    name = "relation_strict"

    def items(self, record: Mapping[str, Any]) -> set[Any]:
        spans = [(span["start"], span["end"], span["label"]) for span in record["spans"]]
        return {(each["label"], spans[each["head"]], spans[each["tail"]]) for each in record["relations"]}


@METRICS.register("relation_boundary_f1")
class RelationBoundaryF1(RelationF1):
    """Precision, recall and F1 of relations, ignoring the labels of spans."""

    main = "relation_boundary_f1"
    name = "relation_boundary"

    def items(self, record: Mapping[str, Any]) -> set[Any]:
        return {(label, head[:2], tail[:2]) for label, head, tail in super().items(record)}
