"""How good tags are: entities found exactly, and single labels, counted as `seqeval` counts."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from palm.core.errors import PalmError


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

    `B-city` begins an entity and `I-city` goes on with it; `O` belongs to none. An `I-` that has
    nothing to go on with, because another kind or nothing stands before it, begins an entity, too.
    `S-` (a single word) and `E-` (the last word) are understood as well.

    Args:
        labels: one per word.

    Source: the default mode of the library `seqeval`, which is that of `conlleval`.
    """
    found: list[Entity] = []
    before, kind_before = "O", ""
    for word, label in enumerate(labels):
        prefix, kind = label[:1], label[1:].removeprefix("-")
        if prefix != "O":
            if kind != kind_before or before in "OES" or prefix in "BS":
                found.append(Entity(kind, word, word))
            else:
                found[-1] = found[-1]._replace(last=word)
        before, kind_before = prefix, kind
    return found


def entity_scores(predicted: Sequence[Sequence[str]], true: Sequence[Sequence[str]]) -> dict[str, float]:
    """Precision, recall and F1 of entities, and accuracy of labels, from 0 to 1.

    An entity is right if its kind, its first and its last word are.

    Args:
        predicted: for every text a label per word.
        true: the same texts' true labels.

    Returns:
        `{"precision": …, "recall": …, "f1": …, "accuracy": …}`; what would divide by 0 is 0.
        `accuracy` is the share of right labels, `O` included, which PaddlePALM calls F1.

    Raises:
        PalmError: another number of texts, or of labels in one of them.
    """
    if len(predicted) != len(true):
        raise PalmError(f"labels are predicted for {len(predicted)} texts, and there are {len(true)}")
    pairs = list(zip(predicted, true, strict=True))
    for text, (ours, theirs) in enumerate(pairs):
        if len(ours) != len(theirs):
            raise PalmError(f"text {text}: {len(ours)} labels are predicted for {len(theirs)} words")
    found = {(text, entity) for text, labels in enumerate(predicted) for entity in entities(labels)}
    expected = {(text, entity) for text, labels in enumerate(true) for entity in entities(labels)}
    right = len(found & expected)
    right_labels = sum(a == b for ours, theirs in pairs for a, b in zip(ours, theirs, strict=True))
    return {
        "precision": share(right, len(found)),
        "recall": share(right, len(expected)),
        "f1": share(2 * right, len(found) + len(expected)),
        "accuracy": share(right_labels, sum(map(len, true))),
    }


def share(part: int, whole: int) -> float:
    """A part of a whole; 0 of nothing is 0."""
    return part / whole if whole else 0.0
