"""Rows of a file that cannot be predicted: they have an error, and all others are predicted."""

import json
from pathlib import Path
from typing import Any

import pytest

import palm
from helpers import tiny
from helpers.reader_files import write_vocabulary
from palm.reader import READERS, ClassifyReader, MRCReader
from palm.reader.predictions import write_table
from palm.reader.rows import BadRow

LINES = ['{"text_a": "a boat"}', '{"text_a": " "}', '{"text_a": null}', "{", '{"text_a": "a door"}']


def rows_file(folder: Path) -> Path:
    path = folder / "rows.jsonl"
    path.write_text("\n".join(LINES) + "\n", encoding="utf-8")
    return path


def test_an_unusable_row_is_an_example_with_a_reason(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    reader = ClassifyReader(write_vocabulary(tmp_path), 16, n_classes=2)
    examples = list(reader.read(rows_file(tmp_path), with_targets=False))
    assert [isinstance(each, BadRow) for each in examples] == [False, True, True, True, False]
    problems = [each.problem for each in examples if isinstance(each, BadRow)]
    assert [problem.split(": ")[0] for problem in problems] == [
        f"{tmp_path}/rows.jsonl:{k}" for k in (2, 3, 4)
    ]
    assert "3 rows cannot be predicted" in caplog.text

    rows = reader.encode_usable(examples, with_targets=False)
    assert rows["example"].values.tolist() == [0, 4]
    records = list(reader.records(examples, rows, [{"label": 1}, {"label": 0}], 10))
    assert [record.get("label") for record in records] == [1, None, None, None, 0]
    assert [record["index"] for record in records] == [10, 11, 12, 13, 14]
    assert records[1]["error"] == problems[0]


LABELS = {"a": 0, "b": 1}


@pytest.mark.parametrize(
    ("name", "settings"),
    [
        ("cls", {}),
        ("match", {}),
        ("mlm", {}),
        ("multi_label", {"n_classes": 2}),
        ("multiple_choice", {}),
        ("ranking", {}),
        ("embedding", {}),
        ("seq_label", {"label_map": LABELS}),
        ("span", {"label_map": LABELS}),
        ("relation", {"label_map": LABELS, "span_label_map": LABELS}),
        ("mrc", {"max_query_len": 4, "doc_stride": 4}),
    ],
)
def test_every_reader_gives_each_of_only_bad_rows_a_reason(
    tmp_path: Path, name: str, settings: dict[str, Any]
) -> None:
    reader = READERS[name](vocab_path=write_vocabulary(tmp_path), max_seq_len=16, **settings)
    columns = reader.columns_of(False) if name != "mrc" else ("question", "context")
    path = tmp_path / "rows.jsonl"
    path.write_text((json.dumps(dict.fromkeys(columns, "")) + "\n") * 2, encoding="utf-8")
    if name == "mrc":
        path.write_text("".join(f'{{"id": {k}, "question": "", "context": ""}}\n' for k in range(2)))
    examples = list(reader.read(path, with_targets=False))
    rows = reader.encode_usable(examples, with_targets=False)
    records = list(reader.records(examples, rows, [], 0))
    assert len(rows) == 0
    assert ["rows.jsonl" in record["error"] for record in records] == [True, True]


@pytest.mark.parametrize("kind", ["csv", "jsonl"])
def test_a_table_of_predictions_has_the_reasons(tmp_path: Path, kind: str) -> None:
    path = rows_file(tmp_path)
    path.write_text('{"text_a": "a boat"}\n' * 2000 + '{"text_a": ""}\n', encoding="utf-8")
    reader = ClassifyReader(write_vocabulary(tmp_path), 16, n_classes=2)
    records = ({"index": k, **({"label": 1} if k < 2000 else {"error": "why"})} for k in range(2001))
    saved = write_table(records, tmp_path / f"out.{kind}", reader, path)
    assert (len(saved), saved[2000]["error"], saved[0].get("error") or None) == (2001, "why", None)


def test_an_empty_question_has_an_empty_answer(tmp_path: Path) -> None:
    path = tmp_path / "rows.jsonl"
    lines = [{"id": "a", "question": "who", "context": " "}, {"id": "b", "question": "who", "context": "a b"}]
    path.write_text("\n".join(map(json.dumps, lines)), encoding="utf-8")
    reader = MRCReader(write_vocabulary(tmp_path), 16, 4, 8)
    examples = list(reader.read(path, with_targets=False))
    rows = reader.encode_usable(examples, with_targets=False)
    records = list(reader.records(examples, rows, [{"spans": []}], 0))
    expected = [("a", "", True), ("b", "", False)]
    assert [(record["id"], record["text"], "error" in record) for record in records] == expected


@pytest.mark.parametrize("target", ["out", "out.csv"])
def test_a_file_is_predicted_although_one_row_is_empty(folder: Path, target: str) -> None:
    tiny.controller(folder, "cls", num_epochs=1).train()
    model = palm.load_model(next((folder / "out").rglob("infer_model")))
    path = folder / "some.tsv"
    path.write_text("text_a\na boat\n \na door\n", encoding="utf-8")
    found = list(model.predict_file(path, folder / target))
    assert [bool(each.get("error")) for each in found] == [False, True, False]
    path = folder / "none.jsonl"
    path.write_text('{"text_a": ""}\n' * 2, encoding="utf-8")
    found = list(model.predict_file(path, folder / f"none_{target}"))
    assert [bool(each["error"]) for each in found] == [True, True]
