"""Relations between spans, given or predicted: from files to scores, saved models and the report."""

from __future__ import annotations

import json
import random
from itertools import permutations
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import palm
from helpers import tiny
from helpers.messages import raises
from helpers.reader_files import encoded, rng_of_row, write_text
from helpers.saved import run_card_example
from palm.core.errors import DataError
from palm.metrics import METRICS, scores_of
from palm.paradigm import Relation
from palm.reader import RelationReader

SPANS = {"owner": 0, "thing": 1, "colour": 2}
LABELS = {"owns": 0, "has": 1}


def row_of(text: Any, spans: Any, relations: Any) -> str:
    named = [dict(zip(("start", "end", "label"), span, strict=True)) for span in spans]
    pairs = [dict(zip(("head", "tail", "label"), pair, strict=True)) for pair in relations]
    return json.dumps({"text_a": text, "spans": named, "relations": pairs}) + "\n"


ROW = row_of(
    ["anna", "has", "red", "boat"],
    [[0, 1, "owner"], [2, 4, "thing"], [2, 3, "colour"]],
    [[0, 1, "owns"], [1, 2, "has"], [0, 1, "has"]],
)


@pytest.mark.parametrize("spans", ["given", "predicted"])
def test_relations_are_marks_of_pairs_of_spans(vocab: Path, tmp_path: Path, spans: str) -> None:
    path = write_text(tmp_path, "rows.jsonl", ROW + row_of(["a"], [], []))
    reader = RelationReader(vocab, 16, LABELS, span_label_map=SPANS, spans=spans)
    batch = reader.collate(encoded(reader, path, with_targets=True), [0, 1], rng_of_row)
    assert (batch["span_starts"].tolist(), batch["span_ends"].tolist()) == (
        [[0, 2, 2], [0, 0, 0]],
        [[1, 4, 3], [0, 0, 0]],
    )
    labels = batch["relation_labels"]
    assert labels[0].eq(1).nonzero().tolist() == [[0, 1, 0], [0, 1, 1], [1, 2, 1]]
    assert labels[0].eq(-100).nonzero().tolist() == [[k, k, label] for k in range(3) for label in range(2)]
    assert labels[1].eq(-100).all()
    assert ("span_labels" in batch) == (spans == "predicted")
    truth, empty = map(reader.gold, reader.read_gold(path))
    assert truth["relations"] == json.loads(ROW)["relations"]
    assert empty == {"relations": [], "spans": []}
    predicting = reader.collate(encoded(reader, path, with_targets=False), [0, 1], rng_of_row)
    assert predicting.keys() == reader.outputs_attr.keys()


@pytest.mark.parametrize(
    ("relations", "named"),
    [
        ([[0, 3, "owns"]], ["relation 0", "head 0 and tail 3"]),
        ([[0, 1, "owns"], [1, 1, "owns"]], ["relation 1", "head 1 and tail 1"]),
        ([["0", 1, "owns"]], ["head '0'"]),
        ([[0, 1, "own"]], ["relation 0", "'own'", "did you mean 'owns'"]),
    ],
)
def test_a_relation_that_cannot_be_is_an_error_with_its_place(
    vocab: Path, tmp_path: Path, relations: Any, named: list[str]
) -> None:
    bad = row_of(["a", "b", "c"], [[k, k + 1, "thing"] for k in range(3)], relations)
    path = write_text(tmp_path, "bad.jsonl", ROW + bad)
    with raises(DataError, "bad.jsonl:2: ", *named):
        list(RelationReader(vocab, 16, LABELS, span_label_map=SPANS).read(path, with_targets=True))


def test_relations_of_two_rows_are_left_out_and_the_others_keep_their_spans(
    vocab: Path, tmp_path: Path
) -> None:
    spans = [[3, 4, "thing"], [0, 1, "owner"], [2, 3, "colour"]]
    path = write_text(
        tmp_path, "long.jsonl", row_of(["anna", "has", "red", "boat"], spans, [[0, 2, "has"], [1, 0, "owns"]])
    )
    reader = RelationReader(vocab, 4, LABELS, span_label_map=SPANS, spans="given")
    examples = list(reader.read(path, with_targets=True))
    rows = reader.encode(examples, with_targets=True)
    assert [rows["relations"][k].tolist() for k in range(2)] == [[], [0, 1, 1]]
    decoded = [{"spans": [], "relations": pairs} for pairs in ([], [(1, 0, 0, 0.75)])]
    (record,) = reader.records(examples, rows, decoded, 0)
    assert record["relations"] == [{"head": 2, "tail": 0, "label": "owns", "prob": 0.75}]
    assert [span["text"] for span in record["spans"]] == ["boat", "anna", "red"]


@pytest.mark.parametrize("spans", ["given", "predicted"])
def test_the_loss_and_its_gradient_are_those_of_a_loop_over_pairs(spans: str) -> None:
    torch.manual_seed(0)
    for _ in range(5):
        head = Relation(2, 6, 0.0, 0.5, n_span_classes=2, spans=spans, biaffine_size=4)
        tokens = torch.randn(2, 6, 6, requires_grad=True)
        starts, ends = torch.tensor([[0, 1, 1], [2, 0, 0]]), torch.tensor([[1, 3, 2], [3, 1, 0]])
        labels = torch.randint(2, (2, 3, 3, 2))
        labels[:, range(3), range(3)] = -100
        labels[1, 2] = labels[1, :, 2] = -100
        targets = {"span_starts": starts, "span_ends": ends, "relation_labels": labels}
        targets["span_labels"] = torch.where(
            torch.triu(torch.ones(4, 4)).bool(), torch.randint(3, (2, 4, 4)), -100
        )
        word_starts = torch.tensor([[1, 2, 3, 4]] * 2)
        outputs = head({"encoder_outputs": tokens, "word_starts": word_starts, **targets})
        found = head.loss(outputs, targets)
        terms = []
        for row, i, j, label in np.argwhere(labels.numpy() >= 0):
            pairs = (
                (head.first, starts[row, i], starts[row, j]),
                (head.last, ends[row, i] - 1, ends[row, j] - 1),
            )
            logit = sum(looped_score(scorer, tokens[row], 1 + a, 1 + b, label) for scorer, a, b in pairs)
            prob = torch.sigmoid(logit)
            terms.append(-torch.log(prob if labels[row, i, j, label] else 1 - prob))
        if head.span_head is not None:
            for row, i, j in np.argwhere(targets["span_labels"].numpy() >= 0):
                scores = [looped_score(head.span_head.scorer, tokens[row], 1 + i, 1 + j, k) for k in range(3)]
                probs = torch.stack(scores).softmax(0)
                terms.append(-torch.log(probs[targets["span_labels"][row, i, j]]))
        expected = torch.stack(terms).mean()
        assert head.num_terms(targets) == len(terms)
        assert found.item() == pytest.approx(expected.item(), abs=1e-6)
        inputs = [tokens, *head.parameters()]
        ours, theirs = torch.autograd.grad(found, inputs), torch.autograd.grad(expected, inputs)
        torch.testing.assert_close(ours, theirs, atol=1e-6, rtol=0)


def looped_score(scorer: Any, tokens: Any, one: Any, other: Any, label: int) -> torch.Tensor:
    """One score of one pair of tokens, in float64."""
    s, e = (
        torch.relu(layer.weight.double() @ tokens[place].double() + layer.bias.double())
        for layer, place in ((scorer.start, one), (scorer.end, other))
    )
    u = scorer.pairs.weight.double().reshape(-1, 5, 5)[label]
    return e @ u[:-1, :-1] @ s + u[-1, :-1] @ s + e @ u[:-1, -1] + u[-1, -1]


def random_record(rng: random.Random) -> dict[str, Any]:
    places = rng.sample([(s, e) for s in range(2) for e in range(s + 1, 3)], rng.randint(0, 3))
    spans = [{"start": s, "end": e, "label": rng.choice("xy"), "text": f"{s}-{e}"} for s, e in places]
    pairs = [(h, t) for h, t in permutations(range(len(spans)), 2) if rng.random() < 0.5]
    return {
        "spans": spans,
        "relations": [{"head": h, "tail": t, "label": rng.choice("rs")} for h, t in pairs],
    }


def test_relations_score_as_sets_in_scikit_learn() -> None:
    sklearn = pytest.importorskip("sklearn.metrics")
    rng = random.Random(0)
    metrics = {"relation_strict": True, "relation_boundary": False}
    for _ in range(50):
        true = [random_record(rng) for _ in range(rng.randint(1, 4))]
        ours = [each if rng.random() < 0.3 else random_record(rng) for each in true]
        found = scores_of([METRICS[f"{name}_f1"] for name in metrics], zip(ours, true, strict=True))
        for name, has_labels in metrics.items():

            def tuples(records: Any, has_labels: bool = has_labels) -> set[Any]:
                keys = ("start", "end", "label") if has_labels else ("start", "end")
                return {
                    (
                        k,
                        *(tuple(r["spans"][p[end]][key] for key in keys) for end in ("head", "tail")),
                        p["label"],
                    )
                    for k, r in enumerate(records)
                    for p in r["relations"]
                }

            a, b = tuples(ours), tuples(true)
            every = sorted(a | b) or [None]
            marks = [[int(one in each) for one in every] for each in (b, a)]
            expected = sklearn.precision_recall_fscore_support(*marks, average="binary", zero_division=0)
            numbers = [found[f"{name}_{number}"] for number in ("precision", "recall", "f1")]
            assert numbers == pytest.approx(list(expected[:3]), abs=1e-12)


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run of spans and relations on the same rows, with predicted and with given spans."""
    folder = tiny.write_files(tmp_path_factory.mktemp("run"))
    changes = {"batch_size": 8, "num_epochs": 10, "learning_rate": 5e-3}
    config = tiny.config(folder, "span", "relation", **changes)
    given = {**config["tasks"]["relation"], "spans": "given", "share_rows_with": "span"}
    config |= {"task_instance": ["span", "relation", "pairs"]}
    config["tasks"] |= {"pairs": given}
    config["tasks"]["relation"] |= {"share_rows_with": "span"}
    for task in config["tasks"].values():
        task["dev_file"] = task["train_file"]
    controller = palm.Controller(config, argv=[])
    controller.train()
    for task in ("relation", "pairs"):
        assert controller.pred(task)[0].keys() == {"index", "spans", "relations"}
    return folder


@pytest.mark.parametrize("task", ["relation", "pairs"])
def test_yaml_trains_it_on_the_rows_of_a_span_task(trained: Path, task: str) -> None:
    model = palm.load_model(trained / "out" / task / "best_model")
    scores = model.evaluate(trained / "span.jsonl")
    assert scores["relation_strict_f1"] > 0.9
    assert model.trained["scores"] == pytest.approx(scores, abs=1e-6)
    text: Any = ["anna", "has", "a", "old", "red", "door", "."]
    if task == "pairs":
        spans = palm.load_model(trained / "out" / "span" / "best_model").predict([text])[0]["spans"]
        text = {"text_a": text, "spans": spans}
    (record,) = model.predict([text])
    words = [span["text"] for span in record["spans"]]
    found = {(words[each["head"]], each["label"], words[each["tail"]]) for each in record["relations"]}
    assert found == {("anna", "owns", "old red door"), ("old red door", "is", "red")}
    run_card_example(trained / "out" / task / "best_model")
