"""Metrics of sequence labelling: entities found exactly, and single labels, counted as `seqeval` counts."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar, NamedTuple

from palm.core.errors import PalmError
from palm.metrics.base import METRICS, Mean, Metric, Prediction, Truth, scores_of
from palm.metrics.classification import LabelTally


class Entity(NamedTuple):
    """Words that are labelled as one thing.

    Args:
        kind: what it is, as in `B-kind`.
        first: its first word, counted from 0.
        last: its last word.
    """

    kind: str
    first: int
    last: int


def entities(labels: Sequence[str]) -> list[Entity]:
    """The entities of one text.

    `B-city` begins an entity and `I-city` continues it; `O` belongs to none. An `I-` that has
    nothing to continue, because another kind or nothing stands before it, begins an entity, too.
    `S-` (a single word) and `E-` (the last word) are understood as well.

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
    """Base of metrics of exact things: F1, precision and recall of all texts' things counted together.

    Attributes:
        name: of the things, with which the names of the numbers begin.
    """

    name: ClassVar[str]

    @abstractmethod
    def things(self, record: Mapping[str, Any]) -> set[Any]:
        """The things of a prediction or of a truth; each is a tuple that begins with its label."""

    def update(self, prediction: Prediction, truth: Truth) -> None:
        predicted = self.things(prediction)
        true = self.things(truth)
        found = ([label for label, *_ in each] for each in (predicted, true, predicted & true))
        self.count(*found)

    def compute(self) -> dict[str, float]:
        return self.named_scores()

    def named_scores(self, label: Any = None, ending: str = "") -> dict[str, float]:
        """Return the numbers of one label, or of all together, by name."""
        precision, recall, f1 = self.scores(label)
        numbers = {"f1": f1, "precision": precision, "recall": recall}
        return {f"{self.name}_{number}{ending}": value for number, value in numbers.items()}


@METRICS.register("entity_f1")
class EntityF1(SetF1):
    """Precision, recall and F1 of entities; one is right if its kind, its first and its last word are."""

    needs = ("labels",)
    main = "entity_f1"
    name = "entity"

    def things(self, record: Mapping[str, Any]) -> set[Any]:
        return set(entities(record["labels"]))


@METRICS.register("token_accuracy")
class TokenAccuracy(Mean):
    """The fraction of words with the right label, `O` included; PaddlePALM's pages call it F1."""

    needs = ("labels",)
    main = "token_accuracy"
    none = 0.0

    def terms(self, prediction: Prediction, truth: Truth) -> list[bool]:
        return [ours == true for ours, true in zip(prediction["labels"], truth["labels"], strict=True)]


def entity_scores(predicted: Sequence[Sequence[str]], true: Sequence[Sequence[str]]) -> dict[str, float]:
    """Precision, recall and F1 of entities, and accuracy of labels, from 0 to 1.

    Args:
        predicted: for every text a label per word.
        true: the same texts' true labels.

    Returns:
        `{"precision": …, "recall": …, "f1": …, "accuracy": …}`, as `EntityF1` and `TokenAccuracy` count;
        what would divide by 0 is 0.

    Raises:
        PalmError: another number of texts, or of labels in one of them.
    """
    if len(predicted) != len(true):
        raise PalmError(f"labels are predicted for {len(predicted)} texts, but there are {len(true)}")
    pairs = []
    for text, (ours, theirs) in enumerate(zip(predicted, true, strict=True)):
        if len(ours) != len(theirs):
            raise PalmError(f"text {text}: {len(ours)} labels are predicted for {len(theirs)} words")
        pairs.append(({"labels": ours}, {"labels": theirs}))
    scores = scores_of([EntityF1, TokenAccuracy], pairs)
    return {name.split("_")[1]: value for name, value in scores.items()}
