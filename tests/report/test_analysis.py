"""Where models are wrong: losses of single rows, confusions, scores of labels, answers."""

from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

import palm
from helpers import runs
from helpers.saved import forge, in_task
from palm.reader.squad import Answer, SquadQuestion
from palm.reader.words import TaggedExample
from palm.report.analysis import MOST_ROWS, Analysis, analyses_of, parts_of
from palm.report.page import _task
from palm.report.run import read_run
from palm.train.counting import (
    AnswerCounts,
    LabelCounts,
    NumberCounts,
    PairCounts,
    SetCounts,
    SpanCounts,
    TagCounts,
    WordCounts,
)
from palm.train.verdict import verdict_of


def of(task: str, run: Path) -> Analysis:
    found = analyses_of(read_run(run))[task]
    assert isinstance(found, Analysis)
    return found


def test_the_hardest_row_is_the_one_whose_label_got_the_least_probability(run: Path) -> None:
    found = of("cls", run)
    model = palm.load_model(run / "cls" / "best_model", precision=read_run(run).history.start.precision)
    dev = Path(read_run(run).setting("cls", "dev_file"))
    examples = list(model.reader.read_gold(dev))
    records = model.records(iter(examples))
    pairs = zip(records, examples, strict=True)
    probs = (record["probs"][int(example.label)] for record, example in pairs)
    losses = sorted((-math.log(prob) for prob in probs), reverse=True)
    assert found.data["examples"] == len(losses) == 13
    assert [row.judged.error for row in found.hardest] == pytest.approx(losses, abs=1e-5)
    assert found.scores == model.evaluate(dev)
    answers = of("mrc", run)  # of forty questions, which have no labels
    assert len(answers.hardest) == MOST_ROWS < answers.rows.rows


def test_rows_are_predicted_in_the_precision_of_the_run(run: Path) -> None:
    shown = read_run(run)
    dev = Path(shown.setting("cls", "dev_file"))
    errors = {}
    for precision in ("fp32", "bf16"):
        start = replace(shown.history.start, precision=precision)
        found = analyses_of(replace(shown, history=replace(shown.history, start=start)))["cls"]
        assert isinstance(found, Analysis)
        errors[precision] = [row.judged.error for row in found.hardest]
        model = palm.load_model(run / "cls" / "best_model", precision=precision)
        examples = list(model.reader.read_gold(dev))
        given = zip(model.records(iter(examples)), examples, strict=True)
        losses = [-math.log(record["probs"][int(example.label)]) for record, example in given]
        assert errors[precision] == pytest.approx(sorted(losses, reverse=True), abs=1e-6)
    assert errors["fp32"] != pytest.approx(errors["bf16"], abs=1e-6)


MODELS = ["cls/best_model", "cls/infer_model", "model"]


@pytest.mark.parametrize(
    ("removed", "reason"),
    [(["resolved_config.yaml"], "dev_file"), ([f"{model}/manifest.json" for model in MODELS], "checkpoint")],
)
def test_the_reason_is_given_when_nothing_was_predicted(run: Path, removed: list[str], reason: str) -> None:
    for file in removed:
        (run / file).unlink()
    found = analyses_of(read_run(run))["cls"]
    assert isinstance(found, str)
    assert reason in found


def test_a_task_that_only_helps_is_predicted_by_the_last_checkpoint(tmp_path: Path) -> None:
    folder = runs.train(
        tmp_path, "cls", "match", target_tag=[1, 0], max_steps=16, save_every_n_steps=8, eval_every_n_steps=8
    )
    found = analyses_of(read_run(folder))
    helper = found["match"]
    assert isinstance(helper, Analysis)
    assert (helper.model.kind, helper.model.folder.name) == ("last checkpoint's", "step_16")
    model = palm.load_model(folder / "step_16").tasks["match"]
    [scores] = [dict(helper.scores)]
    assert scores["accuracy"] == model.evaluate(tmp_path / "match.tsv")["accuracy"]
    (tmp_path / "match.tsv").write_text("label\ttext_a\ttext_b\n0\tred\tred\n", encoding="utf-8")
    told = analyses_of(read_run(folder))["match"]
    assert isinstance(told, str)
    assert "--dev_file match=" in told


def test_dev_data_that_the_run_was_not_scored_on_is_reported(run: Path) -> None:
    shown = read_run(run)
    dev_file = Path(str(shown.setting("cls", "dev_file")))
    lines = dev_file.read_text("utf-8").splitlines(keepends=True)
    dev_file.write_text("".join([lines[0], *lines[:0:-1]]), encoding="utf-8")
    told = analyses_of(shown)["cls"]
    assert isinstance(told, str)
    assert str(dev_file) in told
    found = analyses_of(shown, dev_files={"cls": dev_file})["cls"]
    assert isinstance(found, Analysis)
    assert str(dev_file) in found.other_data
    # Its intervals are not those of the score; those of the evaluation are.
    best = shown.history.best("cls")
    assert best is not None
    assert _task(shown, verdict_of("cls", best), found)["intervals"] == best.rows["cls"].intervals
    dev_file.write_text("".join(lines), encoding="utf-8")
    found = analyses_of(shown)["cls"]
    assert isinstance(found, Analysis)
    assert found.other_data == ""


def test_a_model_that_cannot_be_loaded_leaves_the_rest_of_the_page(run: Path) -> None:
    other = in_task(lambda own: {**own, "reader": {**own["reader"], "name": "elsewhere.Reader"}})
    forge(run / "cls" / "best_model", "config.json", other)
    found = analyses_of(read_run(run))
    assert str(found["cls"]).startswith("Nothing was predicted: ")
    assert "elsewhere.Reader" in str(found["cls"])
    assert isinstance(found["mrc"], Analysis)


def test_tags_are_judged_by_whole_entities() -> None:
    counts = TagCounts()
    example = TaggedExample(["to", "new", "york", "monday"], None, "")
    judged = counts.judge(
        example, {"labels": ["O", "B-city", "O", "B-day"]}, {"labels": ["O", "B-city", "I-city", "B-day"]}
    )
    assert (judged.gold, judged.predicted, judged.is_right) == (
        "city: new york, day: monday",
        "city: new, day: monday",
        False,
    )
    assert counts.label_scores() == {"city": [0, 0, 0, 1, 1], "day": [1, 1, 1, 1, 1]}
    assert (judged.error, dict(counts.facts())) == (
        2,
        {"right": "1 (50.0 % of true)", "missed": "1 (50.0 % of true)", "extra": "1 (50.0 % of predicted)"},
    )


def test_averages_over_labels_are_those_of_scikit_learn_and_seqeval() -> None:
    sklearn = pytest.importorskip("sklearn.metrics", reason="the extra judges is not installed")
    seqeval = pytest.importorskip("seqeval.metrics", reason="the extra judges is not installed")
    scheme = pytest.importorskip("seqeval.scheme", reason="the extra judges is not installed").IOB2
    rng = np.random.default_rng(10)
    pairs = np.asarray([["O", "O"], ["B-x", "I-x"], ["B-y", "O"], ["B-y", "B-x"]])
    how = {"zero_division": 0, "output_dict": True}
    for _ in range(20):
        true, ours = rng.integers(0, 4, (2, 30)).tolist()
        sets, found = (rng.integers(0, 2, (10, 3)) for _ in range(2))
        tags, given = (pairs[rng.integers(0, 4, (3, 6))].reshape(3, 12).tolist() for _ in range(2))
        of_labels, of_sets, of_tags = LabelCounts(), SetCounts(), TagCounts()
        for t, o in zip(true, ours, strict=True):
            of_labels.judge(None, {"label": o}, {"label": t})
        for t, o in zip(sets, found, strict=True):
            record = {"labels": np.flatnonzero(o).tolist(), "probs": o.astype(float).tolist()}
            of_sets.judge(None, record, {"label_set": np.flatnonzero(t).tolist()})
        for t, o in zip(tags, given, strict=True):
            of_tags.judge(TaggedExample(["a"] * 12, None, ""), {"labels": o}, {"labels": t})
        for counts, report in (
            (of_labels, sklearn.classification_report(true, ours, **how)),
            (of_sets, sklearn.classification_report(sets, found, **how)),
            (of_tags, seqeval.classification_report(tags, given, mode="strict", scheme=scheme, **how)),
        ):
            micro = dict.fromkeys(("precision", "recall", "f1-score"), report.get("accuracy"))
            names = ["micro average", "macro average", "weighted average"]
            assert list(counts.averages()) == names
            for name, scores in counts.averages().items():
                expected = report.get(name.replace("average", "avg"), micro)
                assert scores[:3] == pytest.approx([expected[number] for number in micro], abs=1e-9), name


def test_tags_without_a_prefix_keep_their_names() -> None:
    example = TaggedExample(["hm", "york"], None, "")
    judged = TagCounts().judge(example, {"labels": ["UNK", "B-city"]}, {"labels": ["O", "B-city"]})
    assert (judged.gold, judged.predicted) == ("city: york", "UNK: hm, city: york")


def test_two_labels_of_one_place_are_counted_once_each() -> None:
    def spans(*labels: str) -> dict[str, Any]:
        return {"spans": [{"start": 0, "end": 3, "label": each, "text": "red"} for each in labels]}

    counts = SpanCounts()
    judged = counts.judge(SimpleNamespace(text="red door"), spans("a", "b", "c"), spans("a", "d"))
    assert dict(counts.kinds) == {"right": 1, "wrong label": 1, "extra": 1}
    assert (judged.is_right, judged.error) == (False, 3)
    assert counts.confused() == [("d", "b", 1)]


def test_entities_are_marked_in_their_text_as_right_missed_extra_or_wrong() -> None:
    example = TaggedExample(["to", "new", "york", "on", "monday", "at", "noon"], None, "")
    judged = TagCounts().judge(
        example,
        {"labels": ["O", "B-city", "I-city", "B-day", "B-city", "O", "O"]},
        {"labels": ["O", "B-city", "I-city", "O", "B-day", "O", "B-time"]},
    )
    text = "to new york on monday at noon"
    assert sorted(judged.marks) == [
        (text.index("new"), text.index(" on"), "right", "city"),
        (text.index("on"), text.index(" monday"), "extra", "day"),
        (text.index("monday"), text.index(" at"), "wrong label", "city, not day"),
        (text.index("noon"), len(text), "missed", "time"),
    ]
    parts = parts_of(text, judged.marks)
    assert "".join(part.text for part in parts) == text
    assert [part.text for part in parts if part.kind] == ["new york", "on", "monday", "noon"]
    assert [part.label for part in parts if part.kind] == ["city", "day", "city, not day", "time"]


def test_an_answer_is_marked_in_its_context_and_what_is_found_of_it_is_right() -> None:
    context = "x" * 600 + " the old red door of anna " + "y" * 600
    start = context.index("red door")
    example = SquadQuestion("q", "what", context, (Answer("red door", start),), "")
    judged = AnswerCounts().judge(example, {"text": "old red"}, {"answers": ["red door"]})
    expected = [(start - 4, start + 3, "extra"), (start, start + 8, "missed")]
    assert [tuple(mark[:3]) for mark in judged.marks] == expected
    shown = [(part.text, part.kind) for part in parts_of(context, judged.marks)]
    assert shown[0] == shown[-1] == ("…", "")
    assert [each for each in shown if each[1]] == [("old ", "extra"), ("red", "right"), (" door", "missed")]


def test_answers_are_sorted_by_what_is_right_about_them() -> None:
    counts = AnswerCounts()
    for text, answers in [
        ("the Red door", ["red door"]),
        ("red", ["red door"]),
        ("boat", ["red door"]),
        ("", ["red"]),
        ("red", []),
        ("", []),
    ]:
        counts.judge(None, {"text": text}, {"answers": answers})
    assert dict(counts.facts()) == {
        "exactly right": "2 (33.3 %)",
        "overlaps the true answer": "1 (16.7 %)",
        "wrong answer": "1 (16.7 %)",
        "no answer to an answerable question": "1 (16.7 %)",
        "answer to an unanswerable question": "1 (16.7 %)",
    }


def test_numbers_words_and_pairs_are_judged() -> None:
    numbers, words, pairs = NumberCounts(), WordCounts(), PairCounts()
    for value in (1.5, 0.0):
        numbers.judge(None, {"value": value}, {"value": 1.0})
    assert dict(numbers.facts())["mean error (predicted − true)"] == "-0.25"
    judged = words.judge(None, {"words": [{"word": "river", "predicted": "lake"}]}, {})
    assert (judged.gold, judged.predicted, judged.is_right) == ("river", "lake", False)
    pairs.judge(None, {"probs": 0.5}, {"is_right": True})
    assert not pairs.judge(None, {"probs": 0.5}, {"is_right": False}).is_right
