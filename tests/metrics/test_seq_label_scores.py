"""Scores of tags, worked out by hand, and those of the library `seqeval` on random labels."""

from __future__ import annotations

import random

import pytest

from palm.core.errors import ConfigError, PalmError
from palm.metrics.spans import Entity, entities, entity_scores, scheme_of


def test_entities_are_what_their_scheme_allows() -> None:
    labels = ["O", "B-city", "I-city", "B-city", "O", "I-day", "I-day", "I-city", "B-day", "I-city"]
    strict = [Entity("city", 1, 2), Entity("city", 3, 3), Entity("day", 8, 8)]
    assert entities(labels) == strict
    # An I that nothing begins, and one of another kind.
    loose = {Entity("day", 5, 6), Entity("city", 7, 7), Entity("city", 9, 9)}
    assert {*entities(labels, "IOB1")} == {*strict, *loose}
    assert entities(["S-a", "B-a", "I-a", "E-a", "I-a", "E-a", "S-a", "B-a", "O"]) == [
        Entity("a", 0, 0),
        Entity("a", 1, 3),
        Entity("a", 6, 6),
    ]
    assert entities([]) == entities(["O"]) == []


@pytest.mark.parametrize(
    ("tags", "expected"),
    [
        ("ORG O O LOC LOC", [("ORG", 0, 0), ("LOC", 3, 4)]),
        ("人名 地名 o", [("人名", 0, 0), ("地名", 1, 1), ("o", 2, 2)]),
        ("P Q OTHER", [("P", 0, 0), ("Q", 1, 1), ("OTHER", 2, 2)]),
        ("B_PER I_PER O", [("PER", 0, 1)]),
        ("B M E S", [("", 0, 2), ("", 3, 3)]),
    ],
)
def test_a_prefix_is_a_known_letter_before_a_separator_and_other_tags_are_kinds(
    tags: str, expected: list[Entity]
) -> None:
    assert entities(tags.split()) == expected


def test_the_scheme_is_seen_from_the_tags() -> None:
    sets = {
        "IOB2": "O B-x I-x",
        "IOB1": "O I-x",
        "IOBES": "O B-x E-x",
        "BILOU": "O B-x I-x U-x",
        "BMES": "B M E S",
        "BMEWO": "B-x M-x W-x O",
        "plain": "O vitamin-B ORG",
    }
    assert {name: scheme_of(tags.split()) for name, tags in sets.items()} == {name: name for name in sets}
    with pytest.raises(ConfigError, match="'B-PER'"):
        scheme_of(["O", "PER-B", "PER-I"])


def test_plain_kinds_that_begin_with_o_are_entities() -> None:
    scores = entity_scores([["O", "O", "O", "LOC"]], [["ORG", "O", "O", "LOC"]])
    assert (scores["recall"], scores["precision"]) == (0.5, 1.0)


def test_iob1_is_seen_if_true_entities_begin_with_i() -> None:
    text = ["I-x", "O", "I-y", "I-y", "B-y"]
    assert entity_scores([text] * 5, [text] * 5)["f1"] == 1
    assert len(entities(text, "IOB1")) == 3


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


@pytest.mark.parametrize(
    ("scheme", "letters"),
    [("IOB2", "BI"), ("IOBES", "BIES"), ("BILOU", "BILU"), ("BMES", "BMES"), ("BMES", "BMEW")],
)
@pytest.mark.filterwarnings("ignore")
def test_scores_are_those_of_seqevals_strict_mode(scheme: str, letters: str) -> None:
    metrics = pytest.importorskip("seqeval.metrics", reason="seqeval is not installed")
    strict = pytest.importorskip("seqeval.metrics.v1").precision_recall_fscore_support
    schemes = pytest.importorskip("seqeval.scheme", reason="seqeval is not installed")
    judge = getattr(schemes, scheme.replace("BMES", "IOBES"))
    names = str.maketrans("MW", "IS") if scheme == "BMES" else {}
    known = ["O", *(f"{letter}-{kind}" for kind in ("x", "y", "v.z") for letter in letters)]
    for seed in range(1000):
        rng = random.Random(seed)
        lengths = [rng.randint(1, 12) for _ in range(rng.randint(4, 8))]
        true = [rng.choices(known, k=length) for length in lengths]
        ours = [[label if rng.random() < 0.7 else rng.choice(known) for label in text] for text in true]
        scores = entity_scores(ours, true)
        theirs = [[[label.translate(names) for label in text] for text in each] for each in (true, ours)]
        expected = strict(*theirs, average="micro", scheme=judge, zero_division=0)[:3]
        found = [scores[name] for name in ("precision", "recall", "f1")]
        assert found == pytest.approx(list(expected)), (true, ours)
        assert scores["accuracy"] == pytest.approx(metrics.accuracy_score(true, ours))
