"""Metrics of entities: spans and tags."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar, NamedTuple

from palm.core.errors import PalmError
from palm.metrics.base import METRICS, Mean, Metric, Prediction, Truth, scores_of
from palm.metrics.classification import LabelTally


class Entity(NamedTuple):
    """Consecutive words that are labelled as one entity.

    Args:
        kind: the type of entity, as in `B-kind`.
        first: index of its first word.
        last: index of its last word.
    """

    kind: str
    first: int
    last: int


def entities(labels: Sequence[str]) -> list[Entity]:
    """The entities of one text.

    `B-city` begins an entity, `I-city` continues it, and `O` is outside any entity. An `I-` without an
    entity of the same kind before it also begins one. `S-` (a single word) and `E-` (the last word) are
    supported too.

    Args:
        labels: one per word.

    Source: the default mode of the library `seqeval`, which is that of `conlleval`.
    """
    result: list[Entity] = []
    prefix_before = "O"
    kind_before = ""
    for word, label in enumerate(labels):
        prefix = label[:1]
        kind = label[1:].removeprefix("-")
        if prefix != "O":
            # E- and S- end an entity, so an I- after them begins another.
            if kind != kind_before or prefix_before in "OES" or prefix in "BS":
                result.append(Entity(kind, word, word))
            else:
                result[-1] = result[-1]._replace(last=word)
        prefix_before = prefix
        kind_before = kind
    return result


class SetF1(LabelTally, Metric):
    """Base of metrics that compare sets of items: F1, precision and recall over the items of all texts.

    Attributes:
        name: the prefix of the numbers' names.
    """

    name: ClassVar[str]

    @abstractmethod
    def items(self, record: Mapping[str, Any]) -> set[Any]:
        """The items of a prediction or of a truth; each is a tuple that begins with its label."""

    def update(self, prediction: Prediction, truth: Truth) -> None:
        predicted = self.items(prediction)
        true = self.items(truth)
        found = ([label for label, *_ in each] for each in (predicted, true, predicted & true))
        self.count(*found)

    def compute(self) -> dict[str, float]:
        return self.named_scores()

    def named_scores(self, label: Any = None, suffix: str = "") -> dict[str, float]:
        """Return the scores of one label, or of all together, by name."""
        precision, recall, f1 = self.scores(label)
        numbers = {"f1": f1, "precision": precision, "recall": recall}
        return {f"{self.name}_{number}{suffix}": value for number, value in numbers.items()}


@METRICS.register("entity_f1")
class EntityF1(SetF1):
    """Precision, recall and F1 of entities; kind, first word and last word must be right."""

    needs = ("labels",)
    main = "entity_f1"
    name = "entity"

    def items(self, record: Mapping[str, Any]) -> set[Any]:
        return set(entities(record["labels"]))


@METRICS.register("token_accuracy")
class TokenAccuracy(Mean):
    """The fraction of words with the right label, including `O`; PaddlePALM's documents call it F1."""

    needs = ("labels",)
    main = "token_accuracy"
    none = 0.0

    def terms(self, prediction: Prediction, truth: Truth) -> list[bool]:
        return [ours == true for ours, true in zip(prediction["labels"], truth["labels"], strict=True)]


def entity_scores(predicted: Sequence[Sequence[str]], true: Sequence[Sequence[str]]) -> dict[str, float]:
    """Precision, recall and F1 of entities, and accuracy of labels, from 0 to 1.

    Args:
        predicted: the predicted labels of each text, one per word.
        true: the true labels of the same texts.

    Returns:
        `{"precision": …, "recall": …, "f1": …, "accuracy": …}`, see `EntityF1` and `TokenAccuracy`; 0 in
        place of a division by 0.

    Raises:
        PalmError: the numbers of texts differ, or the numbers of labels in one of them.
    """
    if len(predicted) != len(true):
        raise PalmError(f"labels were predicted for {len(predicted)} texts, but there are {len(true)}")
    pairs = []
    for text, (ours, theirs) in enumerate(zip(predicted, true, strict=True)):
        if len(ours) != len(theirs):
            raise PalmError(f"text {text}: {len(ours)} labels were predicted for {len(theirs)} words")
        pairs.append(({"labels": ours}, {"labels": theirs}))
    scores = scores_of([EntityF1, TokenAccuracy], pairs)
    return {name.split("_")[1]: value for name, value in scores.items()}


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
