"""Prediction files are complete or absent, and what is read back is what was written."""

from __future__ import annotations

import json
import tracemalloc
from collections.abc import Iterator
from pathlib import Path

import pytest

from helpers.reader_files import write_vocabulary
from palm.core.errors import DataError
from palm.reader import ClassifyReader, MRCReader, Record
from palm.reader.predictions import write_answers, write_records, write_table

RECORDS = [{"index": k, "label": k % 3, "probs": [0.5, 0.25, 0.25], "label_name": "正面"} for k in range(5)]


def answer(name: str, text: str) -> Record:
    nbest = [{"text": text, "probability": 1.0, "start_logit": 0.5, "end_logit": -2.0}]
    return {"id": name, "text": text, "nbest": nbest}


def failing() -> Iterator[Record]:
    yield answer("q0", "boat")
    raise DataError("pred.tsv:2: a blank line")


def test_saved_records_are_a_list_on_disk(tmp_path: Path) -> None:
    saved = write_records(iter(RECORDS), tmp_path)

    assert len(saved) == 5
    assert saved == RECORDS
    assert saved != RECORDS[:4]
    assert saved[3] == RECORDS[3]
    assert saved[-1] == RECORDS[4]
    assert saved[1:4:2] == [RECORDS[1], RECORDS[3]]
    assert list(saved) == RECORDS
    with pytest.raises(IndexError):
        saved[5]


def test_answers_are_two_mappings_by_question(tmp_path: Path) -> None:
    records = [answer("q1", '北京 "x"\n'), answer("q2", "half \ud83d")]

    saved = write_answers(iter(records), tmp_path)

    assert saved == {"q1": '北京 "x"\n', "q2": "half \ud83d"}
    text = (tmp_path / "nbest_predictions.json").read_text(encoding="utf-8")
    assert json.loads(text) == {record["id"]: record["nbest"] for record in records}
    assert (
        text == json.dumps(json.loads(text), indent=4, ensure_ascii=False).replace("\ud83d", "\\ud83d") + "\n"
    )
    text = (tmp_path / "predictions.json").read_text(encoding="utf-8")
    assert text == '{\n    "q1": "北京 \\"x\\"\\n",\n    "q2": "half \\ud83d"\n}\n'


def test_a_failure_leaves_the_files_of_before(tmp_path: Path) -> None:
    write_answers([answer("old", "door")], tmp_path)
    with pytest.raises(DataError, match=r"pred.tsv:2"):
        write_answers(failing(), tmp_path)
    files = {"nbest_predictions.json", "predictions.json"}
    assert {path.name for path in tmp_path.iterdir()} == files
    assert json.loads((tmp_path / "predictions.json").read_text(encoding="utf-8")) == {"old": "door"}


def test_many_records_need_little_memory(tmp_path: Path) -> None:
    records = ({"index": k, "text": "x" * 100} for k in range(20_000))

    tracemalloc.start()
    saved = write_records(records, tmp_path)
    total = sum(record["index"] for record in saved)
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()

    assert total == sum(range(20_000))
    assert (tmp_path / "predictions.json").stat().st_size > 2_500_000
    assert peak < 1_000_000


def test_a_table_on_disk_is_a_list_of_its_rows(tmp_path: Path) -> None:
    asked = [{"id": str(k), "question": "who", "answers": []} for k in range(5)]
    squad = {"data": [{"paragraphs": [{"context": "a door", "qas": asked}]}]}
    (tmp_path / "squad.json").write_text(json.dumps(squad), encoding="utf-8")
    reader = MRCReader(write_vocabulary(tmp_path), 20, 8, 4)
    predicted = [{"text": f"text {k}"} for k in range(5)]
    saved = write_table(predicted, tmp_path / "rows.csv", reader, tmp_path / "squad.json")
    rows = list(saved)
    assert [(row["id"], row["text"]) for row in rows] == [(str(k), f"text {k}") for k in range(5)]
    assert len(saved) == 5
    for place in (0, 4, -1, slice(1, 3), slice(None, None, -2), slice(5, None)):
        assert saved[place] == rows[place]
    with pytest.raises(IndexError):
        saved[5]


@pytest.mark.parametrize("kind", ["csv", "jsonl"])
def test_a_column_that_begins_late_is_written(tmp_path: Path, kind: str) -> None:
    lines = [{"text_a": f"row {k}", **({"note": "late"} if k > 1500 else {})} for k in range(1600)]
    source = tmp_path / "rows.jsonl"
    source.write_text("".join(json.dumps(line) + "\n" for line in lines), encoding="utf-8")
    reader = ClassifyReader(write_vocabulary(tmp_path), 16)
    records = ({"index": k, "label": 1} for k in range(1600))
    saved = write_table(records, tmp_path / f"out.{kind}", reader, source)
    assert len(saved) == 1600
    assert (saved[1599]["note"], int(saved[1599]["label"])) == ("late", 1)
