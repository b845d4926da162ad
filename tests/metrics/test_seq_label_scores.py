"""Scores of tags, worked out by hand, and those of the library `seqeval` on random labels."""

from __future__ import annotations

import random

import pytest

from palm.core.errors import PalmError
from palm.metrics.spans import Entity, entities, entity_scores

LABELS = ["O", "O", "B-x", "I-x", "B-y", "I-y", "B-y.z", "I-y.z", "S-x", "E-x", "UNK"]


def test_entities_begin_at_b_and_continue_with_i_of_the_same_kind() -> None:
    labels = ["O", "B-city", "I-city", "B-city", "O", "I-day", "I-day", "I-city", "B-day", "I-city"]
    assert entities(labels) == [
        Entity("city", 1, 2),
        Entity("city", 3, 3),
        Entity("day", 5, 6),  # an I that nothing begins
        Entity("city", 7, 7),  # another kind
        Entity("day", 8, 8),
        Entity("city", 9, 9),
    ]
    assert entities(["S-a", "B-a", "I-a", "E-a", "I-a", "E-a", "S-a", "O"]) == [
        Entity("a", 0, 0),
        Entity("a", 1, 3),
        Entity("a", 4, 5),
        Entity("a", 6, 6),
    ]
    assert entities([]) == entities(["O"]) == []


def test_an_entity_is_right_if_its_kind_and_both_ends_are() -> None:
    true = [["B-x", "I-x", "O", "B-y"], ["O", "B-y"]]
    ours = [["B-x", "O", "O", "B-y"], ["B-x", "B-x"]]
    # Four found, three expected, one in common; three labels of six.
    assert entity_scores(ours, true) == {
        "precision": pytest.approx(1 / 4),
        "recall": pytest.approx(1 / 3),
        "f1": pytest.approx(2 / 7),
        "accuracy": 3 / 6,
    }


def test_nothing_found_is_zero_and_missing_labels_are_an_error() -> None:
    assert entity_scores([["O"]], [["B-x"]]) == {"precision": 0, "recall": 0, "f1": 0, "accuracy": 0}
    assert entity_scores([], [])["f1"] == 0
    with pytest.raises(PalmError, match=r"\b1 texts.*\b2\b"):
        entity_scores([["O"]], [["O"], ["O"]])
    with pytest.raises(PalmError, match=r"^text 1: 1 labels.*\b2 words"):
        entity_scores([["O"], ["O"]], [["O"], ["O", "O"]])


@pytest.mark.filterwarnings("ignore")
def test_scores_are_those_of_seqeval() -> None:
    metrics = pytest.importorskip("seqeval.metrics", reason="seqeval is not installed")
    get_entities = metrics.sequence_labeling.get_entities
    for seed in range(300):
        rng = random.Random(seed)
        known = LABELS[: rng.choice([4, 6, 8, 11])]
        lengths = [rng.randint(1, 12) for _ in range(rng.randint(1, 5))]
        true = [rng.choices(known, k=length) for length in lengths]
        ours = [[label if rng.random() < 0.7 else rng.choice(known) for label in text] for text in true]
        scores = entity_scores(ours, true)
        assert scores["precision"] == pytest.approx(metrics.precision_score(true, ours)), (true, ours)
        assert scores["recall"] == pytest.approx(metrics.recall_score(true, ours)), (true, ours)
        assert scores["f1"] == pytest.approx(metrics.f1_score(true, ours)), (true, ours)
        assert scores["accuracy"] == pytest.approx(metrics.accuracy_score(true, ours))
        assert [tuple(entity) for entity in entities(ours[0])] == get_entities(ours[0])
