"""Batches of a dataset get the columns that `palm predict` writes into a table; Ray is not needed."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import palm
import palm.ray
from helpers import tiny
from helpers.messages import raises
from palm.core.errors import ConfigError
from palm.reader.tables.reading import raw_rows

TASKS = ("cls", "match", "mlm", "span", "relation")


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tiny.write_files(tmp_path_factory.mktemp("run"))
    tiny.controller(folder, *TASKS, num_epochs=0.5).train()
    return folder


def expected(trained: Path, task: str, data: Path, tmp_path: Path) -> list[dict[str, Any]]:
    model = palm.load_model(trained / "out" / task / "infer_model")
    return [dict(row) for row in model.predict_file(data, tmp_path / f"{task}.jsonl")]


def columns_of(rows: list[dict[str, Any]]) -> dict[str, Any]:
    columns = {name: [row[name] for row in rows] for name in rows[0]}
    arrays = {}
    for name, values in columns.items():
        arrays[name] = np.empty(len(values), dtype=object)
        arrays[name][:] = [np.array(v, dtype=object) if isinstance(v, list) else v for v in values]
    return arrays


@pytest.mark.parametrize("task", TASKS)
def test_the_columns_are_those_of_a_predicted_table(trained: Path, tmp_path: Path, task: str) -> None:
    data = trained / {"span": "span.jsonl", "relation": "span.jsonl"}.get(task, f"{task}.tsv")
    rows = [{"id": number, **row.cells} for number, row in enumerate(raw_rows(data))]
    predictor = palm.ray.Predictor(trained / "out" / task / "infer_model")
    table = predictor(columns_of(rows))
    found = [dict(zip(table, values, strict=True)) for values in zip(*table.values(), strict=True)]
    for row, number, whole in zip(
        found, range(len(rows)), expected(trained, task, data, tmp_path), strict=True
    ):
        assert row.pop("id") == number
        new = {name: value for name, value in row.items() if name not in rows[0]}
        assert new == {name: value for name, value in whole.items() if name not in rows[0]}
        assert new


def test_a_data_frame_stays_one(trained: Path) -> None:
    pandas = pytest.importorskip("pandas")
    predictor = palm.ray.Predictor(trained / "out" / "cls" / "infer_model")
    rows = {"id": [7, 3], "label": ["a", "b"], "text_a": ["the red door", "bert has a new lamp"]}
    plain = predictor({name: np.array(values) for name, values in rows.items()})
    assert list(plain) == ["id", "label", "text_a", "predicted_label", "probability"]
    frame = predictor(pandas.DataFrame(rows))
    for name in ("predicted_label", "probability"):
        assert frame[name].tolist() == plain[name]
    assert predictor({"id": np.array([]), "text_a": np.array([])}).keys() == {"id", "text_a"}


def test_a_row_that_cannot_be_predicted_has_an_error_and_costs_no_other(trained: Path) -> None:
    predictor = palm.ray.Predictor(trained / "out" / "cls" / "infer_model")
    texts = ["the red door", None, "bert has a new lamp"]
    whole = predictor({"text_a": np.array(texts, dtype=object)})
    good = predictor({"text_a": np.array([texts[0], texts[2]], dtype=object)})
    assert [whole["label"][k] for k in (0, 2)] == good["label"]
    assert [error is None for error in whole["error"]] == [True, False, True]
    assert whole["label"][1] is None


def test_several_tasks_read_a_row_together(trained: Path) -> None:
    one, other = (palm.load_model(trained / "out" / task / "infer_model") for task in ("cls", "mlm"))
    joint = palm.JointModel({"cls": one, "mlm": other})
    predictor = palm.ray.Predictor(trained / "out" / "cls" / "infer_model")
    predictor._model, predictor._tasks = joint, ["cls", "mlm"]
    found = predictor({"text_a": np.array(["the red door"], dtype=object)})
    assert list(found) == ["text_a", "cls.label", "cls.probability", "mlm.words"]
    assert json.dumps(found["mlm.words"][0]) == json.dumps(other.predict(["the red door"])[0]["words"])


def test_an_unknown_task_is_named(trained: Path) -> None:
    with raises(ConfigError, "'clss'", "cls"):
        palm.ray.Predictor(trained / "out" / "cls" / "infer_model", tasks=["clss"])
