"""Labels and numbers score as in scikit-learn and SciPy, on random cases; what they warn of, by hand."""

from __future__ import annotations

import math
import random
import warnings
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
import torch
from torch.nn import functional as F

from palm.core.errors import ConfigError, PalmError
from palm.metrics import METRICS, Metric, entity_scores, metric_problems, metrics_of, scores_of
from palm.metrics.spans import Entity, entities, scheme_of
from palm.paradigm import MaskLM

CASES = 250


def scored(name: str, field: str, predicted: Any, true: Any) -> dict[str, float]:
    pairs = [({field: ours}, {field: theirs}) for ours, theirs in zip(predicted, true, strict=True)]
    return scores_of([METRICS[name]], pairs)


def random_labels() -> Iterator[tuple[list[int], list[int]]]:
    rng = np.random.default_rng(7)
    for _ in range(CASES):
        size, classes = rng.integers(1, 40), rng.integers(1, 6)
        true = rng.integers(0, classes, size)
        ours = np.where(rng.random(size) < rng.random(), true, rng.integers(0, classes, size))
        yield ours.tolist(), true.tolist()


def test_labels_score_as_in_scikit_learn() -> None:
    sklearn = pytest.importorskip("sklearn.metrics")
    for ours, true in random_labels():
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            expected = {
                "accuracy": sklearn.accuracy_score(true, ours),
                "macro_f1": sklearn.f1_score(true, ours, average="macro", zero_division=0),
                "micro_f1": sklearn.f1_score(true, ours, average="micro", zero_division=0),
                "mcc": sklearn.matthews_corrcoef(true, ours),
            }
        for name, value in expected.items():
            assert scored(name, "label", ours, true) == {name: pytest.approx(value, abs=1e-12)}


def test_numbers_score_as_in_scipy_and_scikit_learn() -> None:
    stats, sklearn = pytest.importorskip("scipy.stats"), pytest.importorskip("sklearn.metrics")
    rng = np.random.default_rng(8)
    for case in range(CASES):
        size = int(rng.integers(3, 60))
        true = rng.normal(size=size) * 10.0 ** rng.integers(-3, 4)
        if case % 2:
            true = np.round(true)  # with ties
        ours = rng.random() * true + rng.normal(size=size)
        mse = pytest.approx(sklearn.mean_squared_error(true, ours), rel=1e-9)
        assert scored("mse", "value", ours, true) == {"mse": mse}
        if len(set(true)) > 1:
            pearson, spearman = stats.pearsonr(ours, true)[0], stats.spearmanr(ours, true)[0]
            assert scored("pearson", "value", ours, true)["pearson"] == pytest.approx(pearson, abs=1e-9)
            assert scored("spearman", "value", ours, true)["spearman"] == pytest.approx(spearman, abs=1e-9)


def test_entities_counted_one_by_one_are_those_of_all_texts_together() -> None:
    rng = np.random.default_rng(9)
    names = np.asarray(["O", "O", "B-x", "I-x", "B-y", "I-y"])
    for _ in range(CASES):
        true = [rng.choice(names, rng.integers(1, 12)).tolist() for _ in range(3)]
        ours = [rng.choice(names, len(labels)).tolist() for labels in true]
        whole = entity_scores(ours, true)  # compared with seqeval elsewhere
        assert scored("entity_f1", "labels", ours, true) == {
            f"entity_{key}": pytest.approx(whole[key]) for key in ("f1", "precision", "recall")
        }
        assert scored("token_accuracy", "labels", ours, true)["token_accuracy"] == whole["accuracy"]


def test_a_correlation_with_a_constant_is_not_a_number() -> None:
    assert math.isnan(scored("pearson", "value", [1.0, 1.0, 1.0], [1.0, 2.0, 3.0])["pearson"])
    assert math.isnan(scored("spearman", "value", [1.0, 2.0], [3.0, 3.0])["spearman"])


def test_perplexity_is_that_of_all_hidden_words_together() -> None:
    # Three words with probabilities 1/2, 1/4 and 1/8: the geometric mean is 1/4.
    guesses = [[("a", "a", 0.5), ("b", "c", 0.25)], [("d", "d", 0.125)]]
    pairs = [
        ({"words": [{"word": w, "predicted": p, "log_prob": math.log(x)} for w, p, x in row]}, {"words": []})
        for row in guesses
    ]
    scores = scores_of(metrics_of(["perplexity", "word_accuracy"]), pairs)
    assert scores == {"perplexity": pytest.approx(4.0), "word_accuracy": pytest.approx(2 / 3)}


def test_perplexity_is_torchs_cross_entropy_of_what_the_output_layer_gave() -> None:
    generator = torch.Generator().manual_seed(3)
    head = MaskLM(hidden_size=4, vocab_size=11)
    for _ in range(CASES):
        counts = torch.randint(1, 5, (3,), generator=generator)
        logits = 4 * torch.randn(int(counts.sum()), 11, generator=generator)
        labels = torch.randint(11, (int(counts.sum()),), generator=generator)
        places = torch.cat([4 * row + torch.arange(int(count)) for row, count in enumerate(counts)])
        outputs = {"logits": logits, "mask_pos": places, "input_mask": torch.ones(3, 4, dtype=torch.bool)}
        judged = head.eval_outputs(outputs, {"mask_label": labels})
        pairs = [({"words": [{"log_prob": p} for p in row["log_probs"]]}, {}) for row in judged]
        expected = math.exp(F.cross_entropy(logits.double(), labels).item())
        assert scores_of([METRICS["perplexity"]], pairs)["perplexity"] == pytest.approx(expected, rel=1e-5)


def test_a_pair_is_right_if_the_right_text_scores_higher() -> None:
    pairs = [({"probs": p}, {"is_right": k % 2 == 0}) for k, p in enumerate([0.6, 0.5, 0.2, 0.3, 0.4, 0.4])]
    assert scores_of([METRICS["pair_accuracy"]], pairs) == {"pair_accuracy": pytest.approx(1 / 3)}


def test_goodness_rises_and_1_is_perfect() -> None:
    assert METRICS["accuracy"].normalized_score(0.75) == 0.75
    assert METRICS["squad"].normalized_score(75.0) == 0.75
    assert METRICS["mse"].normalized_score(0.0) == 1.0
    assert METRICS["perplexity"].normalized_score(3.0) == 0.25


def test_names_of_metrics_are_checked() -> None:
    with pytest.raises(ConfigError, match=r"'acuracy'.*'accuracy'"):
        metrics_of(["acuracy"])
    with pytest.raises(ConfigError, match=r"'squad' and 'cmrc' .*'f1'"):
        metrics_of(["squad", "cmrc"])
    [line] = metric_problems(["accuracy", "pearson"], ["label"])
    assert "'pearson'" in line
    assert "'value'" in line
    assert line.endswith("accuracy, ece, macro_f1, mcc, micro_f1, qwk")


def test_a_metric_of_ones_own_is_named_by_its_path() -> None:
    assert metrics_of([f"{__name__}.OffByOne"]) == [OffByOne]
    assert scored(f"{__name__}.OffByOne", "label", [1, 2, 5], [1, 1, 1]) == {"close": 2 / 3}


class OffByOne(Metric):
    """The share of labels that are at most one off."""

    needs = ("label",)
    main = "close"

    def __init__(self) -> None:
        self.hits: list[bool] = []

    def update(self, prediction: Any, truth: Any) -> None:
        self.hits.append(abs(prediction["label"] - truth["label"]) <= 1)

    def compute(self) -> dict[str, float]:
        return {"close": sum(self.hits) / len(self.hits)}


def test_sets_of_labels_score_as_in_scikit_learn() -> None:
    sklearn = pytest.importorskip("sklearn.metrics")
    rng = np.random.default_rng(10)
    for _ in range(CASES):
        shape = (int(rng.integers(1, 20)), int(rng.integers(2, 7)))
        true, ours = rng.random(shape) < rng.random(), rng.random(shape) < rng.random()
        probs = rng.integers(0, 6, shape) / 5  # with ties
        pairs = [
            ({"labels": np.flatnonzero(p).tolist(), "probs": q.tolist()}, {"label_set": [*np.flatnonzero(t)]})
            for p, q, t in zip(ours, probs, true, strict=True)
        ]
        some = np.flatnonzero((true | ours).any(0))
        macro = sklearn.f1_score(true, ours, average=None, zero_division=0)[some]
        assert scores_of(metrics_of(["label_f1", "exact_match", "lrap"]), pairs) == {
            "micro_f1": pytest.approx(sklearn.f1_score(true, ours, average="micro", zero_division=0)),
            "macro_f1": pytest.approx(np.mean(macro) if len(some) else 0),
            "exact_match": pytest.approx(sklearn.accuracy_score(true, ours)),
            "lrap": pytest.approx(sklearn.label_ranking_average_precision_score(true, probs)),
        }


# Scores of tags, worked out by hand, and those of the library `seqeval` on random labels.


def test_entities_are_what_their_scheme_allows() -> None:
    labels = ["O", "B-city", "I-city", "B-city", "O", "I-day", "I-day", "I-city", "B-day", "I-city"]
    strict = [Entity("city", 1, 2), Entity("city", 3, 3), Entity("day", 8, 8)]
    assert entities(labels) == strict
    # An I that nothing begins, and one of another kind.
    loose = {Entity("day", 5, 6), Entity("city", 7, 7), Entity("city", 9, 9)}
    assert {*entities(labels, "IOB1")} == {*strict, *loose}
    expected = [Entity("a", 0, 0), Entity("a", 1, 3), Entity("a", 6, 6)]
    assert entities(["S-a", "B-a", "I-a", "E-a", "I-a", "E-a", "S-a", "B-a", "O"]) == expected
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
