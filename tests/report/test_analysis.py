"""Where models are wrong: losses of single rows, confusions, scores of labels, answers."""

from __future__ import annotations

import json
import math
from dataclasses import asdict
from pathlib import Path

import pytest
import torch

import palm
from helpers import runs, tiny
from helpers.saved import forge
from palm.core.numerics.rng import generator
from palm.predict.inference import InferenceModel
from palm.predict.loading import models_in
from palm.reader.seq_label import TaggedExample
from palm.report.analysis import Analysis, analyse, analyses_of
from palm.report.counting import (
    AnswerCounts,
    LabelCounts,
    LabelScore,
    NumberCounts,
    PairCounts,
    TagCounts,
    WordCounts,
    counts_of,
    grouped,
)
from palm.report.data import statistics
from palm.report.losses import example_losses, has_row_losses
from palm.report.page import _task
from palm.report.run import Model, read_run
from palm.train.model import outputs_of

WIDTH = tiny.BACKBONE["hidden_size"]


def of(task: str, run: Path) -> Analysis:
    found = analyses_of(read_run(run))[task]
    assert isinstance(found, Analysis)
    return found


def test_the_hardest_row_is_the_one_whose_label_got_the_least_probability(run: Path) -> None:
    found = of("cls", run)
    model = palm.load_model(run / "cls" / "best_model")
    dev = Path(read_run(run).setting("cls", "dev_file"))
    examples = list(model.reader.read_gold(dev))
    records = model.records(iter(examples))
    losses = sorted(
        (
            -math.log(record["probs"][int(example.label)])
            for record, example in zip(records, examples, strict=True)
        ),
        reverse=True,
    )
    assert found.examples == len(losses) == 13
    assert [row.loss for row in found.hardest] == pytest.approx(losses, abs=1e-5)
    assert found.scores == [*model.evaluate(dev).items()]


def test_a_matrix_counts_every_example_once(run: Path) -> None:
    found = of("cls", run)
    assert sum(map(sum, found.matrix)) == found.examples == sum(each.support for each in found.label_scores)
    right = sum(found.matrix[k][k] for k in range(len(found.matrix_labels)))
    assert dict(found.scores)["accuracy"] == pytest.approx(right / found.examples)


def test_a_hostile_row_is_kept_as_it_is(run: Path) -> None:
    assert [("text_a", runs.HOSTILE)] in [row.texts for row in of("cls", run).hardest]


def test_what_was_found_is_kept_for_the_same_model_and_data(run: Path) -> None:
    first = of("mrc", run)
    stored = (run / "report_data.json").read_bytes()
    again = analyses_of(read_run(run), predict=False)["mrc"]
    assert isinstance(again, Analysis)
    assert json.dumps(asdict(again)) == json.dumps(asdict(first))
    assert (run / "report_data.json").read_bytes() == stored


MODELS = ["cls/best_model", "cls/infer_model", "best/cls"]


@pytest.mark.parametrize(
    ("removed", "reason"),
    [
        ([], "--no_predict"),
        (["resolved_config.yaml"], "dev_file"),
        ([f"{model}/manifest.json" for model in MODELS], "checkpoint"),
    ],
)
def test_the_reason_is_given_when_nothing_was_predicted(run: Path, removed: list[str], reason: str) -> None:
    for file in removed:
        (run / file).unlink()
    found = analyses_of(read_run(run), predict=False)["cls"]
    assert isinstance(found, str)
    assert reason in found


def test_a_task_that_only_helps_is_predicted_by_the_last_checkpoint(tmp_path: Path) -> None:
    folder = runs.train(
        tmp_path, "cls", "match", target_tag=[1, 0], max_steps=16, save_every_n_steps=8, eval_every_n_steps=8
    )
    found = analyses_of(read_run(folder))
    helper = found["match"]
    assert isinstance(helper, Analysis)
    assert (helper.kind, Path(helper.model).name) == ("last checkpoint's", "step_16")
    model = next(each for each in models_in(folder / "step_16") if each.task == "match")
    [scores] = [dict(helper.scores)]
    assert scores["accuracy"] == model.evaluate(tmp_path / "match.tsv")["accuracy"]
    (tmp_path / "match.tsv").write_text("label\ttext_a\ttext_b\n0\tred\tred\n", encoding="utf-8")
    told = analyses_of(read_run(folder))["match"]
    assert isinstance(told, str)
    assert "--dev_file match=" in told


def test_dev_data_that_is_gone_is_named(run: Path) -> None:
    file = run / "resolved_config.yaml"
    dev = str(read_run(run).setting("cls", "dev_file"))
    file.write_text(file.read_text(encoding="utf-8").replace(dev, "/gone/dev.tsv"), encoding="utf-8")
    assert "/gone/dev.tsv" in str(analyses_of(read_run(run))["cls"])


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
    shown_of_it = _task(shown, "cls", found)
    assert (shown_of_it["intervals"], shown_of_it["baseline"]) == (
        {},
        None,
    )  # they are not those of the score
    dev_file.write_text("".join(lines), encoding="utf-8")
    found = analyses_of(shown)["cls"]
    assert isinstance(found, Analysis)
    assert found.other_data == ""


def test_a_model_that_cannot_be_loaded_leaves_the_rest_of_the_page(run: Path) -> None:
    forge(
        run / "cls" / "best_model",
        "config.json",
        lambda config: {**config, "reader": {**config["reader"], "name": "elsewhere.Reader"}},
    )
    found = analyses_of(read_run(run))
    assert str(found["cls"]).startswith("Nothing was predicted: ")
    assert "elsewhere.Reader" in str(found["cls"])
    assert isinstance(found["mrc"], Analysis)


def model_of(folder: Path, reader: palm.reader.Reader, head: palm.head.Head) -> InferenceModel:
    torch.manual_seed(0)
    settings = json.loads((folder / "backbone.json").read_text(encoding="utf-8"))
    backbone = palm.backbone.BERT(**settings)
    return InferenceModel("t", reader, backbone.eval(), head.eval(), batch_size=7, precision="fp32")


def cases(folder: Path) -> list[tuple[InferenceModel, Path]]:
    vocab = folder / "vocab.txt"
    words = folder / "tags.tsv"
    words.write_text(
        "text_a\tlabel\nanna has a red door\tB-x I-x O O B-x\nbert\tO\nold new\tO B-x\n", encoding="utf-8"
    )
    numbers = folder / "numbers.tsv"
    numbers.write_text("label\ttext_a\n1.5\tanna has\n-2\ta red door\n0\tbert\n", encoding="utf-8")
    reader, head = palm.reader, palm.head
    return [
        (
            model_of(folder, reader.ClassifyReader(vocab, 24), head.Classify(n_classes=4, hidden_size=WIDTH)),
            folder / "cls.tsv",
        ),
        (
            model_of(
                folder,
                reader.SequenceLabelReader(vocab, 24, {"O": 0, "B-x": 1, "I-x": 2}),
                head.SequenceLabel(n_classes=3, hidden_size=WIDTH, use_crf=True),
            ),
            words,
        ),
        (
            model_of(folder, reader.MRCReader(vocab, 24, 8, 8), head.MRC(hidden_size=WIDTH)),
            folder / "mrc.json",
        ),
        (
            model_of(
                folder,
                reader.ClassifyReader(vocab, 24, label_type="real"),
                head.Regression(hidden_size=WIDTH),
            ),
            numbers,
        ),
    ]


@pytest.mark.parametrize("number", range(4))
def test_the_mean_of_single_losses_is_the_loss_of_the_batch(number: int, tmp_path: Path) -> None:
    model, file = cases(tiny.write_files(tmp_path))[number]
    examples = list(model.reader.read_gold(file))
    rows = model.reader.encode(examples, with_targets=True)
    assert len(rows) == len(examples)
    batch = model.reader.collate(rows, range(len(rows)), lambda k: generator(0, k))
    with torch.inference_mode():
        expected = model.head.loss(outputs_of(model.backbone, model.head, batch), batch).item()
    assert has_row_losses(model)
    found = example_losses(model, examples)
    assert math.fsum(found) / len(found) == pytest.approx(expected, abs=1e-5)  # type: ignore[arg-type]


def test_the_loss_of_tags_is_that_of_the_words_of_a_text(tmp_path: Path) -> None:
    folder = tiny.write_files(tmp_path)
    _, file = cases(folder)[1]
    reader = palm.reader.SequenceLabelReader(folder / "vocab.txt", 24, {"O": 0, "B-x": 1, "I-x": 2})
    model = model_of(folder, reader, palm.head.SequenceLabel(n_classes=3, hidden_size=WIDTH, use_crf=False))
    examples = list(reader.read_gold(file))
    words = [len(example.words) for example in examples]
    rows = reader.encode(examples, with_targets=True)
    batch = reader.collate(rows, range(3), lambda k: generator(0, k))
    with torch.inference_mode():
        mean = model.head.loss(outputs_of(model.backbone, model.head, batch), batch).item()
    found = example_losses(model, examples)
    total = sum(loss * n for loss, n in zip(found, words, strict=True))  # type: ignore[operator]
    assert total / sum(words) == pytest.approx(mean, abs=1e-5)


def test_a_question_whose_answer_does_not_stand_there_has_no_loss(tmp_path: Path) -> None:
    folder = tiny.write_files(tmp_path)
    model, _ = cases(folder)[2]
    data = json.loads((folder / "mrc.json").read_text(encoding="utf-8"))
    data["data"][0]["paragraphs"][1]["qas"][0]["answers"][0]["answer_start"] += 1
    (folder / "mrc.json").write_text(json.dumps(data), encoding="utf-8")
    losses = example_losses(model, list(model.reader.read_gold(folder / "mrc.json")))
    assert [number for number, loss in enumerate(losses) if loss is None] == [1]


def test_a_hidden_words_loss_is_that_of_its_record(tmp_path: Path) -> None:
    folder = tiny.write_files(tmp_path)
    model = model_of(
        folder,
        palm.reader.MaskLMReader(folder / "vocab.txt", 24),
        palm.head.MaskLM(hidden_size=WIDTH, vocab_size=40),
    )
    assert not has_row_losses(model)
    model.save(folder / "model")
    found = analyse(Model("mlm", "last", folder / "model"), folder / "mlm.tsv")
    mean = math.log(dict(found.scores)["perplexity"])
    assert found.hardest[0].loss is not None
    assert found.hardest[0].loss > mean
    assert found.confused


def test_labels_are_called_by_their_names() -> None:
    counts = LabelCounts({0: "no", 1: "yes"})
    judged = [
        counts.judge(None, {"label": given, "probs": [0.25, 0.75]}, {"label": true})
        for given, true in [(1, 1), (1, 0), (1, 0), (0, 1), (1, 1)]
    ]
    assert (judged[1].gold, judged[1].predicted, judged[1].is_right) == ("no", "yes (75 %)", False)
    assert counts.matrix() == (["no", "yes"], [[0, 2], [1, 2]])
    assert counts.confused() == [("no", "yes", 2), ("yes", "no", 1)]
    assert counts.label_scores() == [
        LabelScore("yes", 0.5, pytest.approx(2 / 3), pytest.approx(4 / 7), 3, 4),
        LabelScore("no", 0.0, 0.0, 0.0, 2, 1),
    ]


def test_a_matrix_of_too_many_labels_is_left_to_the_confused_pairs() -> None:
    counts = LabelCounts({})
    for label in range(25):
        counts.judge(None, {"label": label}, {"label": label})
    assert counts.matrix() == ([], [])


def test_tags_are_judged_by_whole_entities() -> None:
    counts = TagCounts()
    example = TaggedExample(["to", "new", "york", "monday"], None, "")
    judged = counts.judge(
        example, {"labels": ["O", "B-city", "O", "B-day"]}, {"labels": ["O", "B-city", "I-city", "B-day"]}
    )
    assert (judged.gold, judged.predicted, judged.is_right) == ("city: new york", "city: new", False)
    assert counts.label_scores() == [LabelScore("city", 0, 0, 0, 1, 1), LabelScore("day", 1, 1, 1, 1, 1)]
    assert counts.confused() == [("I-city", "O", 1)]


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
        "exactly right": "2 of 6 (33.3 %)",
        "overlaps the true answer": "1 of 6 (16.7 %)",
        "wrong answer": "1 of 6 (16.7 %)",
        "no answer to an answerable question": "1 of 6 (16.7 %)",
        "answer to an unanswerable question": "1 of 6 (16.7 %)",
        "mean words of a true answer": "1.17",
        "mean words of a predicted answer": "0.83",
    }
    by_length, by_windows = counts.groups([1, 1, 1, 2, 2, 9])
    assert by_length[1] == [("0", 2, 0.5), ("1", 1, 0.0), ("2", 3, pytest.approx((1 + 2 / 3) / 3))]
    assert by_windows[1] == [("1", 3, pytest.approx((1 + 2 / 3) / 3)), ("2", 2, 0.0), ("9 or more", 1, 1.0)]


def test_numbers_words_and_pairs_are_judged() -> None:
    numbers, words, pairs = NumberCounts(), WordCounts(), PairCounts()
    for value in (1.5, 0.0):
        numbers.judge(None, {"value": value}, {"value": 1.0})
    assert dict(numbers.facts())["mean error (predicted − true)"] == "-0.25"
    judged = words.judge(None, {"words": [{"word": "river", "predicted": "lake"}]}, {})
    assert (judged.gold, judged.predicted, judged.is_right) == ("river", "lake", False)
    pairs.judge(None, {"probs": 0.5}, {"is_right": True})
    assert not pairs.judge(None, {"probs": 0.5}, {"is_right": False}).is_right


def test_ranges_without_rows_are_left_out() -> None:
    assert grouped([(0, 1.0), (7, 0.0)], (0, 1, 5)) == [("0", 1, 1.0), ("5 or more", 1, 0.0)]


def test_a_reader_with_other_truths_is_named(tmp_path: Path) -> None:
    reader = palm.reader.ClassifyReader(tiny.write_files(tmp_path) / "vocab.txt", 24)
    reader.gold_names = ("mood",)
    with pytest.raises(palm.PalmError, match=r"ClassifyReader.* mood\b"):
        counts_of(reader)


def test_the_statistics_of_a_file(tmp_path: Path) -> None:
    folder = tiny.write_files(tmp_path)
    reader = palm.reader.ClassifyReader(folder / "vocab.txt", 8)
    (folder / "x.tsv").write_text(
        "label\ttext_a\n0\tred\n1\tred door\n1\tred door a a a a a a\n", encoding="utf-8"
    )
    found = statistics(reader, folder / "x.tsv", "dev", most=3)
    assert (found.examples, found.rows, found.is_cut, found.at_limit) == (3, 3, False, 1)
    assert found.tokens == {"least": 3, "median": 4, "95 %": 4, "99 %": 4, "most": 8, "mean": 5.0}
    assert found.labels == [("1", 2), ("0", 1)]
    assert found.histogram == [("3", 1), ("4", 1), ("5", 0), ("6", 0), ("7", 0), ("8", 1)]
    assert statistics(reader, folder / "x.tsv", "dev", most=2).is_cut
