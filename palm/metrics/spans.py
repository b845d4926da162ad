"""Metrics of entities: spans and tags."""

from __future__ import annotations

from abc import abstractmethod
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from itertools import pairwise
from typing import Any, ClassVar, NamedTuple

from palm.core.errors import ConfigError, PalmError
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


PARTS = {"B": "B", "I": "I", "M": "I", "E": "E", "L": "E", "S": "S", "U": "S", "W": "S"}
"""Prefix of a tag -> its part of an entity: its first word, one inside, the last or the only one."""

SCHEMES = {"LU": "BILOU", "W": "BMEWO", "M": "BMES", "ES": "IOBES", "B": "IOB2", "I": "IOB1"}
"""Prefixes -> the scheme that one of them shows; the first match decides."""

IOB1_ENTITIES = 10
"""Number of true entities that begin with `I-`, none with `B-` in its place, from which tags are IOB1."""


def tag_parts(tag: str) -> tuple[str, str]:
    """Split a tag into its prefix and its kind; a tag without a prefix is a kind, and `O` is neither.

    A prefix is one of `B I E S L U M W`, followed by `-` or `_`, or the whole tag.
    """
    if tag == "O":
        return "", ""
    if tag[:1] in PARTS and (len(tag) == 1 or tag[1] in "-_"):
        return tag[0], tag[2:]
    return "", tag


def scheme_of(tags: Iterable[str]) -> str:
    """Return the scheme of a set of tags: `BILOU`, `BMEWO`, `BMES`, `IOBES`, `IOB2`, `IOB1` or `plain`.

    IOB2 also stands for IOB1 with `B-` between adjacent entities, which only texts can tell apart.

    Raises:
        ConfigError: the tags end in what should be their prefix, as `PER-B` and `PER-I` do.
    """
    tags = {*tags} - {"O"}
    prefixes = {tag_parts(tag)[0] for tag in tags} - {""}
    ends = {tag[-1:] for tag in tags if tag[-2:-1] in {"-", "_"}}
    if not prefixes and len(ends & PARTS.keys()) > 1 and all(tag[-2:-1] in {"-", "_"} for tag in tags):
        example = min(tags)
        raise ConfigError(
            f"the tags end in B, I and the like, as {example!r} does; write them first: "
            f"{example[-1] + example[-2] + example[:-2]!r}"
        )
    return next((name for letters, name in SCHEMES.items() if prefixes & {*letters}), "plain")


def entities(labels: Sequence[str], scheme: str | None = None) -> list[Entity]:
    """The entities of one text.

    With ends in the scheme (IOBES, BILOU, BMES), an entity is a single word, or a first word, those inside it
    and a last word. In IOB2 it is a first word and those inside it; in IOB1, `I-` begins an entity too. Parts
    of an entity that the scheme does not allow are ignored. Equal tags without prefix in a row are an entity.

    Args:
        labels: one per word.
        scheme: see `scheme_of`; by default, that of these labels.

    Source: the strict mode of the library `seqeval`; for IOB1, its default mode, that of `conlleval`.
    """
    scheme = scheme_of(labels) if scheme is None else scheme
    has_ends = scheme not in ("IOB1", "IOB2", "plain")
    result: list[Entity] = []
    current: Entity | None = None
    before = ""
    for word, label in enumerate([*labels, "O"]):
        prefix, kind = tag_parts(label)
        part = PARTS.get(prefix, "")
        same = current is not None and kind == current.kind and bool(prefix) == bool(before)
        if current is not None and same and part not in ("B", "S"):
            current = current._replace(last=word)
        else:
            if current is not None and not (has_ends and before):
                result.append(current)
            begins = label != "O" and (part in ("B", "S", "") or scheme == "IOB1")
            current = Entity(kind, word, word) if begins else None
        if current is not None and has_ends and part in ("E", "S"):
            result.append(current)
            current = None
        before = prefix
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
    """Precision, recall and F1 of entities; kind, first word and last word must be right.

    Entities are counted under three rules (see `entities`), because the scheme is known from all texts only.
    """

    needs = ("labels",)
    main = "entity_f1"
    name = "entity"

    def __init__(self) -> None:
        super().__init__()
        self._tags: Counter[str] = Counter()
        self._begin: Counter[str] = Counter()

    def items(self, record: Mapping[str, Any]) -> set[Any]:
        labels = record["labels"]
        return {(rule, *each) for rule in ("IOBES", "IOB2", "IOB1") for each in entities(labels, rule)}

    def update(self, prediction: Prediction, truth: Truth) -> None:
        super().update(prediction, truth)
        self._tags.update(prediction["labels"])
        self._tags.update(truth["labels"])
        tags = [tag_parts(tag) for tag in ("O", *truth["labels"])]
        self._begin.update(tag[0] for before, tag in pairwise(tags) if tag[1] != before[1] or not before[0])

    def compute(self) -> dict[str, float]:
        scheme = scheme_of(tag for tag, count in self._tags.items() if count)
        if scheme == "IOB2" and not self._begin["B"] and self._begin["I"] >= IOB1_ENTITIES:
            scheme = "IOB1"
        return self.named_scores(scheme if scheme in ("IOB2", "IOB1") else "IOBES")


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
