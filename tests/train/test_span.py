"""Spans that may nest: from files of words and of characters to scores, saved models and the report."""

from __future__ import annotations

import json
import logging
import math
import random
import re
from itertools import combinations
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import palm
from helpers import tiny
from helpers.messages import raises
from helpers.reader_files import encoded, rng_of_row, write_text
from palm.core.errors import DataError
from palm.metrics import METRICS, scores_of
from palm.paradigm import Span
from palm.paradigm.span import best_spans
from palm.reader import SpanReader
from palm.reader.cache import training_rows
from palm.train.counting import SpanCounts

NAMES = {"thing": 0, "colour": 1}

BOAT = [[2, 4, "thing"], [2, 3, "colour"]]

FORMS: dict[str, tuple[Any, list[list[Any]], dict[str, Any]]] = {
    "words": (["anna", "has", "red", "boat", "."], BOAT, {}),
    "blanks": ("anna has red boat .", BOAT, {"span_unit": "word"}),
    "characters": ("anna  has red boat.", [[10, 18, "thing"], [10, 13, "colour"]], {}),
}


def row_of(text: Any, spans: Any) -> str:
    named = [dict(zip(("start", "end", "label"), span, strict=True)) for span in spans]
    return json.dumps({"text_a": text, "spans": named}, ensure_ascii=False) + "\n"


@pytest.mark.parametrize("form", FORMS)
def test_every_form_of_spans_gives_the_same_targets_and_itself_back(
    vocab: Path, tmp_path: Path, form: str
) -> None:
    text, spans, own = FORMS[form]
    path = write_text(tmp_path, "rows.jsonl", row_of(text, spans) + row_of(["old"], []))
    reader = SpanReader(vocab, 16, NAMES, **own)
    batch = reader.collate(encoded(reader, path, with_targets=True), [0, 1], rng_of_row)
    assert batch["word_starts"].tolist() == [[1, 2, 3, 4, 5], [1, 0, 0, 0, 0]]
    expected = torch.full((2, 5, 5), -100)
    expected[0][torch.triu(torch.ones(5, 5)).bool()] = 0
    expected[0, 2, 3], expected[0, 2, 2] = 1, 2
    expected[1, 0, 0] = 0
    assert batch["span_labels"].equal(expected)
    truth, empty = map(reader.gold, reader.read_gold(path))
    assert [[s["start"], s["end"], s["label"]] for s in truth["spans"]] == spans
    assert [span["text"] for span in truth["spans"]] == ["red boat", "red"]
    assert empty == {"spans": []}


def test_chinese_characters_are_words(vocab: Path, tmp_path: Path) -> None:
    path = write_text(
        tmp_path, "rows.jsonl", row_of("中国a的首都是北京。", [[0, 2, "thing"], [7, 9, "thing"]])
    )
    (example,) = SpanReader(vocab, 16, NAMES).read(path, with_targets=True)
    assert example.words == ["中", "国", "a", "的", "首", "都", "是", "北", "京", "。"]
    assert [span[:2] for span in example.spans] == [(0, 2), (7, 9)]


@pytest.mark.parametrize(
    ("text", "spans", "named"),
    [
        (["a", "b"], [[1, 3, "thing"]], ["span 0", "start 1 and end 3", "2 words"]),
        (["a", "b"], [[0, 1, "thing"], [1, 1, "thing"]], ["span 1", "start 1 and end 1"]),
        (["a", "b"], [[1, 0, "thing"]], ["start 1 and end 0"]),
        (["a", "b"], [[-1, 1, "thing"]], ["start -1"]),
        (["a", "b"], [["0", 1, "thing"]], ["start '0'"]),
        (["a", "b"], [[0, 1, "thin"]], ["span 0", "'thin'", "did you mean 'thing'"]),
        (["a", "b"], [[0, 1, "thing"], [0, 1, "colour"]], ["span 1", "span 0"]),
        ("red boat", [[0, 9, "thing"]], ["8 characters", "end 9"]),
        ("red boat", [[0, 6, "thing"]], ["'red bo'", "span_unit: word"]),
        ("red boat", [[3, 8, "thing"]], ["' boat'"]),
        (["a", "b"], [5], ["span 0", "not 5"]),
        (["a", "b"], "0-1", ["spans should be a list", "'0-1'"]),
    ],
)
def test_a_span_that_cannot_be_is_an_error_with_its_place(
    vocab: Path, tmp_path: Path, text: Any, spans: Any, named: list[str]
) -> None:
    whole = isinstance(spans, str) or not isinstance(spans[0], list)
    bad = json.dumps({"text_a": text, "spans": spans}) + "\n" if whole else row_of(text, spans)
    path = write_text(tmp_path, "bad.jsonl", row_of(["a"], []) + bad)
    with raises(DataError, "bad.jsonl:2: ", *named):
        list(SpanReader(vocab, 16, NAMES).read(path, with_targets=True))
    kept = list(SpanReader(vocab, 16, NAMES, on_bad_row="skip").read(path, with_targets=True))
    assert [example.words for example in kept] == [["a"]]


def test_rows_without_spans_train_no_spans(vocab: Path, tmp_path: Path) -> None:
    path = write_text(tmp_path, "some.jsonl", row_of(["a"], []) + '{"text_a": ["b", "c"], "spans": null}\n')
    assert len(list(SpanReader(vocab, 16, NAMES).read(path, with_targets=True))) == 1
    reader = SpanReader(vocab, 16, NAMES, missing_labels=True)
    batch = reader.collate(encoded(reader, path, with_targets=True), [0, 1], rng_of_row)
    assert Span(2, 4).num_terms(batch) == 1
    assert batch["span_labels"][1].tolist() == [[-100, -100]] * 2
    with pytest.raises(DataError, match=r"some\.jsonl:2"):
        list(map(reader.gold, reader.read(path, with_targets=True)))


def test_spans_of_two_rows_are_counted_and_the_others_keep_their_places(
    vocab: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    words = ["red", "boat", "old", "door", "new", "boat"]
    path = write_text(
        tmp_path, "long.jsonl", row_of(words, [[1, 3, "thing"], [4, 6, "thing"], [0, 1, "thing"]])
    )
    reader = SpanReader(vocab, 4, NAMES)
    with caplog.at_level(logging.WARNING, "palm"):
        rows = training_rows(reader, path, None)
    assert re.search(r"long\.jsonl: 1 of 3 .*33\.3 %.*max_seq_len \(now 4\)", caplog.text)
    assert [rows["spans"][k].tolist() for k in range(3)] == [[0, 1, 0], [], [0, 2, 0]]
    examples = list(reader.read(path, with_targets=False))
    decoded = [{"spans": spans} for spans in ([], [(0, 2, 0, 0.5)], [(1, 2, 1, 0.5)])]
    (record,) = reader.records(examples, reader.encode(examples, with_targets=False), decoded, 0)
    assert record["spans"] == [
        {"start": 2, "end": 4, "label": "thing", "text": "old door", "prob": 0.5},
        {"start": 5, "end": 6, "label": "colour", "text": "boat", "prob": 0.5},
    ]


def test_the_loss_and_its_gradient_are_those_of_the_papers_equation() -> None:
    torch.manual_seed(0)
    for _ in range(5):
        head = Span(3, 6, 0.0, 0.5, biaffine_size=4)
        for layer in (head.scorer.start, head.scorer.end):
            torch.nn.init.normal_(layer.bias, std=0.5)
        tokens = torch.randn(2, 7, 6, requires_grad=True)
        starts = torch.tensor([[1, 2, 4, 6], [1, 3, 0, 0]])
        labels = torch.where(torch.triu(torch.ones(4, 4)).bool(), torch.randint(4, (2, 4, 4)), -100)
        labels[1, :, 2:] = labels[1, 2:] = -100
        inputs = [tokens, *head.parameters()]
        outputs = head({"encoder_outputs": tokens, "word_starts": starts})
        found = head.loss(outputs, {"span_labels": labels})
        ours = torch.autograd.grad(found, inputs)
        theirs = torch.autograd.grad(expected := looped_loss(head, tokens, starts, labels), inputs)
        assert found.item() == pytest.approx(expected.item(), abs=1e-6)
        torch.testing.assert_close(ours, theirs, atol=1e-6, rtol=0, check_dtype=False)


def looped_loss(head: Span, tokens: Any, starts: Any, labels: Any) -> torch.Tensor:
    """Equation 1 of Yu et al. and the cross-entropy, a span after the other, in float64."""
    size = head.scorer.start.out_features
    weight = head.scorer.pairs.weight.double().reshape(-1, size + 1, size + 1)
    losses = []
    for row, i, j in np.argwhere(labels.numpy() >= 0):
        s, e = (
            torch.relu(layer.weight.double() @ tokens[row, starts[row, k]].double() + layer.bias.double())
            for layer, k in ((head.scorer.start, i), (head.scorer.end, j))
        )
        scores = torch.stack(
            [e @ u[:-1, :-1] @ s + u[-1, :-1] @ s + e @ u[:-1, -1] + u[-1, -1] for u in weight]
        )
        losses.append(torch.log(torch.exp(scores).sum()) - scores[labels[row, i, j]])
    return torch.stack(losses).mean()


@settings(max_examples=60, deadline=None)
@given(st.integers(1, 7), st.integers(0, 10_000), st.booleans(), st.booleans())
def test_decoding_takes_the_best_spans_that_cross_none_before(
    words: int, seed: int, has_ties: bool, nested: bool
) -> None:
    logits = torch.randn(words, words, 3, generator=torch.Generator().manual_seed(seed))
    logits = logits.round() if has_ties else logits
    candidates = []
    for first in range(words):
        for last in range(first, words):
            score, label = logits[first, last, 1:].max(0)
            if score > logits[first, last, 0]:
                candidates.append((-score.item(), first, last, int(label)))
    taken: list[tuple[int, int, int]] = []
    for _, first, last, label in sorted(candidates):
        if nested:
            fits = not any(a < first <= b < last or first < a <= last < b for a, b, _ in taken)
        else:
            fits = not any(a <= last and first <= b for a, b, _ in taken)
        if fits:
            taken.append((first, last, label))
    found = list(best_spans(logits, nested))
    assert [(first, beyond - 1, label) for first, beyond, label, _ in found] == taken
    for first, beyond, label, prob in found:
        assert prob == pytest.approx(logits[first, beyond - 1].softmax(-1)[label + 1].item())
    assert not any(a < c < b < d for (a, b, *_), (c, d, *_) in combinations(sorted(found), 2))


def random_spans(rng: random.Random, most: int) -> list[dict[str, Any]]:
    places = [(s, e) for s in range(3) for e in range(s + 1, 4)]
    drawn = rng.sample(places, rng.randint(0, most))
    return [{"start": s, "end": e, "label": rng.choice("abc"), "text": ""} for s, e in drawn]


def test_spans_score_as_sets_in_scikit_learn() -> None:
    sklearn = pytest.importorskip("sklearn.metrics")
    rng = random.Random(0)
    for case in range(50):
        rows = range(rng.randint(1, 5))
        true = [random_spans(rng, case % 4) for _ in rows]
        ours = [[*each] if rng.random() < 0.3 else random_spans(rng, case % 3) for each in true]
        every = [(k, s, e, label) for k in rows for s in range(3) for e in range(s + 1, 4) for label in "abc"]

        def marks(spans: Any, every: Any = every) -> Any:
            found = {(k, s["start"], s["end"], s["label"]) for k, row in enumerate(spans) for s in row}
            return np.array([one in found for one in every], dtype=int)

        y_true, y_ours = marks(true), marks(ours)
        pairs = [({"spans": a}, {"spans": b}) for a, b in zip(ours, true, strict=True)]
        found = scores_of([METRICS["span_f1"], METRICS["span_label_f1"]], pairs)
        expected = sklearn.precision_recall_fscore_support(y_true, y_ours, average="binary", zero_division=0)
        scores = [found[f"span_{name}"] for name in ("precision", "recall", "f1")]
        assert scores == pytest.approx(list(expected[:3]), abs=1e-12)
        by_label = {}
        for label in "abc":
            own = np.array([one[3] == label for one in every])
            if (y_true | y_ours)[own].any():
                by_label[label] = sklearn.precision_recall_fscore_support(
                    y_true[own], y_ours[own], average="binary", zero_division=0
                )
        for label, numbers in by_label.items():
            own_scores = [found[f"span_{name}:{label}"] for name in ("precision", "recall", "f1")]
            assert own_scores == pytest.approx(list(numbers[:3]), abs=1e-12)
        macro = math.fsum(each[2] for each in by_label.values()) / max(1, len(by_label))
        assert found["span_macro_f1"] == pytest.approx(macro, abs=1e-12)


def test_the_report_distinguishes_missed_spans_from_wrong_ends_and_labels() -> None:
    def spans(*values: tuple[int, int, str]) -> dict[str, Any]:
        return {
            "spans": [{"start": a, "end": b, "label": label, "text": f"{a}-{b}"} for a, b, label in values]
        }

    counts = SpanCounts()
    truth = spans((0, 2, "x"), (3, 5, "x"), (6, 7, "y"), (8, 9, "y"))
    judged = counts.judge(None, spans((0, 2, "x"), (3, 4, "x"), (6, 7, "x"), (10, 11, "y")), truth)
    assert judged.gold == "x: 0-2, x: 3-5, y: 6-7, y: 8-9"
    assert judged.predicted == "x: 0-2, x: 3-4, x: 6-7, y: 10-11"
    assert not judged.is_right
    assert dict(counts.kinds) == {"right": 1, "wrong label": 1, "missed": 2, "extra": 2}
    assert counts.confused() == [("y", "x", 1)]
    expected = {"x": [1 / 3, 1 / 2], "y": [0, 0]}
    assert {label: each[:2] for label, each in counts.label_scores().items()} == expected


def nested_rows(folder: Path, rows: int, seed: int) -> Path:
    """Texts with coloured things, and colours in them."""
    rng = random.Random(seed)
    lines = []
    for _ in range(rows):
        name, colour, thing = (rng.choice(words) for words in (tiny.NAMES, tiny.COLOURS, tiny.THINGS))
        text = f"the {colour} {thing} of {name}" if rng.random() < 0.5 else f"{name} has a {colour} {thing}"
        start = text.index(f" {colour} ") + 1
        spans = [[start, start + len(f"{colour} {thing}"), "thing"], [start, start + len(colour), "colour"]]
        lines.append(row_of(text, spans))
    return write_text(folder, f"{seed}.jsonl", "".join(lines))


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tiny.write_files(tmp_path_factory.mktemp("run"))
    train, dev = (str(nested_rows(folder, rows, seed)) for rows, seed in ((64, 1), (24, 2)))
    task = {"reader": "span", "paradigm": "span", "label_map": NAMES, "metrics": "span_f1, span_label_f1"}
    changes = {"batch_size": 8, "num_epochs": 6, "learning_rate": 5e-3}
    config = tiny.config(folder, "cls", **changes) | {
        "tasks": {"cls": {**task, "train_file": train, "dev_file": dev, "pred_file": dev}}
    }
    controller = palm.Controller(config, argv=[])
    controller.train()
    assert controller.pred("cls")[0].keys() == {"index", "spans"}
    return folder


def test_yaml_trains_it_and_the_best_model_has_the_scores_of_the_run(trained: Path) -> None:
    model = palm.load_model(trained / "out" / "cls" / "best_model")
    scores = model.evaluate(trained / "2.jsonl")
    assert scores["span_f1"] > 0.9
    assert model.trained["scores"] == pytest.approx(
        scores | model.evaluate(trained / "2.jsonl", ["span_label_f1"])
    )
    found = [
        [(span["text"], span["label"]) for span in record["spans"]]
        for record in model.predict(["the  red door", ["the", "red", "door"]])
    ]
    assert found == [[("red", "colour"), ("red door", "thing")]] * 2
    table = model.predict_file(trained / "2.jsonl", trained / "out.jsonl")
    assert {"text_a", "spans", "predicted_spans"} == table[0].keys()
