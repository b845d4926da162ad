"""Rows that cannot be used: all in one report, or left out; counted and written down."""

from __future__ import annotations

import json
import logging
from pathlib import Path
from typing import Any

import pytest

import palm.compat as palm
from helpers import tiny
from palm.core.cache import Cache
from palm.core.errors import ConfigError, DataError
from palm.reader import ClassifyReader, MaskLMReader, MatchReader, MRCReader, Reader, SequenceLabelReader
from palm.reader.cache import training_rows

CONTEXT = "the red door has a red lamp ."


def table(folder: Path, *rows: str) -> Path:
    path = folder / "bad.tsv"
    path.write_text("\n".join(rows) + "\n", encoding="utf-8")
    return path


def squad(folder: Path, *questions: dict[str, Any]) -> Path:
    path = folder / "bad.json"
    qas = [{"id": str(k), **question} for k, question in enumerate(questions)]
    path.write_text(json.dumps({"data": [{"paragraphs": [{"context": CONTEXT, "qas": qas}]}]}))
    return path


def asked(text: str, start: int | None, question: str = "what") -> dict[str, Any]:
    return {"question": question, "answers": [{"text": text, "answer_start": start}]}


LABELS = {"O": 0, "B": 1}
Problem = tuple[int, str, str]
"""The line, and two values that the message has."""

CASES: list[tuple[type[Reader], dict[str, Any], list[str], int, list[Problem]]] = [
    (
        ClassifyReader,
        {"n_classes": 2},
        ["label\ttext_a", "1\tred", "2\tred", "0\tred\tdoor", "0\t ", "", "0\tblue"],
        2,
        [(3, "'2'", "0 to 1"), (4, "3 columns", "red\\tdoor"), (5, "text_a", "empty"), (6, "blank", "2")],
    ),
    (
        MatchReader,
        {"learning_strategy": "pairwise"},
        ["text_a\ttext_b\ttext_b_neg", "a\tb\tc", "a\tb\t", "\tb\tc"],
        1,
        [(3, "text_b_neg", "empty"), (4, "text_a", "empty")],
    ),
    (
        SequenceLabelReader,
        {"label_map": LABELS},
        ["text_a\tlabel", "red door\tO B", "red door\tO", "red\tX"],
        1,
        [(3, "1 label for 2 words", "'red door'"), (4, "'X'", "O, B")],
    ),
    (MaskLMReader, {}, ["text_a", "red door", "\x01", "\x02"], 1, [(3, "'\\x01'"), (4, "'\\x02'")]),
]


@pytest.mark.parametrize(
    ("kind", "settings", "rows", "good", "problems"), CASES, ids=lambda case: str(case)[:30]
)
def test_all_problems_of_a_table_are_one_report_or_are_left_out(
    folder: Path,
    caplog: pytest.LogCaptureFixture,
    kind: type[Reader],
    settings: dict[str, Any],
    rows: list[str],
    good: int,
    problems: list[Problem],
) -> None:
    path = table(folder, *rows)

    def read(mode: str) -> Any:
        reader = kind(folder / "vocab.txt", 16, on_bad_row=mode, **settings)
        return training_rows(reader, path, None)

    with pytest.raises(DataError) as caught:
        read("error")
    *lines, remedy = str(caught.value).splitlines()
    for line, (number, *values) in zip(lines, problems, strict=True):
        assert line.startswith(f"{path}:{number}: ")
        assert all(value in line for value in values)
    assert remedy.startswith(f"{path}: {len(problems)} ")
    assert "on_bad_row: skip" in remedy
    encoded = read("skip")
    assert len(encoded) == good
    warning = caplog.messages[0]
    assert f"{len(problems)} rows" in warning
    assert warning.endswith(lines[0])


QUESTIONS = [
    asked("red door", 4),
    asked("red", 18),
    asked("red", 5),
    asked("lamp", None),
    asked("red", None),  # two places
    asked("blue", 3),
    asked("lamp", 23, question=" "),
    {"question": "what", "answers": []},
]


def test_answers_that_stand_elsewhere_are_left_out(folder: Path) -> None:
    path = squad(folder, *QUESTIONS)

    def reader(mode: str) -> MRCReader:
        return MRCReader(folder / "vocab.txt", 32, 4, 8, on_bad_row=mode)

    with pytest.raises(DataError) as caught:
        list(reader("error").read(path, with_targets=True))
    *lines, remedy = str(caught.value).splitlines()
    values = [("18", "' re'", "at 4"), ("5", "'ed '", "at 4"), ("'lamp'", "at 23"), ("'red'", "at 4")]
    values += [("'blue'", "3", "' red'"), ("question", "empty"), ("answers",)]
    for number, (line, parts) in enumerate(zip(lines, values, strict=True), start=1):
        assert line.startswith(f"{path}: question '{number}': ")
        assert all(part in line for part in parts)
    assert remedy.startswith(f"{path}: 7 ")
    assert [q.id for q in reader("skip").read(path, with_targets=True)] == ["0"]
    assert len(training_rows(reader("skip"), path, None)) == 1


def test_a_prediction_looks_at_no_label_and_answers_every_question(
    folder: Path, caplog: pytest.LogCaptureFixture
) -> None:
    path = squad(folder, *QUESTIONS, {"question": "x", "answers": 5}, {"question": "x"}, asked("x", "y"))
    config = tiny.config(folder, "mrc", num_epochs=1)
    config["tasks"]["mrc"] |= {"dev_file": str(squad(folder, *QUESTIONS)), "on_bad_row": "skip"}
    palm.Controller(config, argv=[]).train()
    caplog.clear()
    path = squad(folder, *QUESTIONS, {"question": "x", "answers": 5}, {"question": "x"}, asked("x", "y"))
    model = palm.load_model(folder / "out" / "mrc" / "best_model")
    answers = model.predict_file(str(path), str(folder / "predictions"))
    assert list(answers) == [str(number) for number in range(11)]
    assert answers["6"] == ""
    assert caplog.messages[-1].startswith(f"{path}: 1 rows cannot be predicted")
    assert "'6': the question is empty" in caplog.messages[-1]


def test_evaluation_needs_only_the_texts_of_answers(folder: Path) -> None:
    path = squad(folder, *QUESTIONS[:-1])
    reader = MRCReader(folder / "vocab.txt", 32, 4, 8, on_bad_row="skip")
    truths = [truth["answers"] for truth in map(reader.gold, reader.read_gold(path))]
    assert truths == [["red door"], ["red"], ["red"], ["lamp"], ["red"], ["blue"]]


def test_many_bad_rows_are_counted_and_the_first_are_listed(folder: Path) -> None:
    path = folder / "many.tsv"
    path.write_text("label\ttext_a\n0\tred\n" + "x\tred\n" * 1500)
    refusing = ClassifyReader(folder / "vocab.txt", 16, n_classes=2)
    with pytest.raises(DataError) as caught:
        training_rows(refusing, path, None)
    lines = str(caught.value).splitlines()
    assert len(lines) == 12
    assert lines[0].startswith(f"{path}:3: the label 'x'")
    assert "1490" in lines[10]
    assert lines[11].startswith(f"{path}: 1500 ")


def test_cached_rows_remember_what_was_left_out_and_each_mode_has_its_own(
    folder: Path, caplog: pytest.LogCaptureFixture
) -> None:
    path, cache = squad(folder, *QUESTIONS), Cache(folder / "cache")

    def rows(mode: str) -> Any:
        caplog.clear()
        return training_rows(MRCReader(folder / "vocab.txt", 32, 4, 8, on_bad_row=mode), path, cache)

    skipped = rows("skip")
    assert len(skipped) == 1
    again = rows("skip")
    assert again.digest == skipped.digest
    assert "on_bad_row: skip left them out" in caplog.text
    with pytest.raises(DataError, match=r"bad\.json: 7 rows"):
        rows("error")


def test_a_run_reports_once_what_it_left_out_of_training_and_dev_data(
    folder: Path, caplog: pytest.LogCaptureFixture
) -> None:
    good = (folder / "cls.tsv").read_text(encoding="utf-8")
    (folder / "cls.tsv").write_text(good + "9\tred\n", encoding="utf-8")
    (folder / "dev.tsv").write_text(good + "1\n", encoding="utf-8")
    config = tiny.config(folder, "cls", num_epochs=2, on_bad_row="skip")
    config["tasks"]["cls"]["dev_file"] = str(folder / "dev.tsv")
    with caplog.at_level(logging.WARNING, "palm"):
        palm.Controller(config, argv=[]).train()
    # Two evaluations and those after them read the dev file again.
    for name in ("cls.tsv", "dev.tsv"):
        (line,) = (line for line in caplog.messages if f"{name}: 1 rows" in line)
        assert f"{name}:42: " in line


@pytest.mark.parametrize("mode", ["ignore", "repair"])
def test_another_mode_is_refused(folder: Path, mode: str) -> None:
    with pytest.raises(ConfigError, match=rf"on_bad_row: '{mode}' .*error, skip"):
        ClassifyReader(folder / "vocab.txt", 16, on_bad_row=mode)
