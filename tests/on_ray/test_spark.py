"""The recipe for Spark in docs/ray.md gives the rows of `palm predict`."""

from __future__ import annotations

import re
import shutil
from pathlib import Path

import pytest

import palm
from helpers import tiny

PAGE = Path(__file__).resolve().parents[2] / "docs" / "ray.md"


@pytest.mark.slow
def test_the_recipe_for_spark_predicts_every_row_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("pyspark", reason="needs pyspark")
    pandas = pytest.importorskip("pandas")
    if shutil.which("java") is None:
        pytest.skip("needs Java")
    tiny.write_files(tmp_path)
    tiny.controller(tmp_path, "cls", num_epochs=0.5).train()
    model = tmp_path / "out" / "cls" / "infer_model"
    lines = (tmp_path / "cls.tsv").read_text(encoding="utf-8").splitlines()[1:]
    texts = [line.split("\t")[1] for line in lines]
    rows = pandas.DataFrame({"id": range(len(texts)), "text_a": texts})
    rows.to_json(tmp_path / "rows.jsonl", orient="records", lines=True)

    (recipe,) = re.findall(r"```text\n(from collections(?s:.*?))```", PAGE.read_text(encoding="utf-8"))
    monkeypatch.setenv("PYSPARK_SUBMIT_ARGS", "--master local[1] --conf spark.ui.enabled=false pyspark-shell")
    monkeypatch.setenv("SPARK_LOCAL_IP", "127.0.0.1")
    places = {"MODEL": model, "INPUT": tmp_path / "rows.jsonl", "OUTPUT": tmp_path / "predicted"}
    names = {name: str(place) for name, place in places.items()}
    exec(compile(recipe, str(PAGE), "exec"), names)
    names["session"].stop()  # type: ignore[attr-defined]
    found = pandas.read_parquet(tmp_path / "predicted").sort_values("id")
    records = palm.load_model(model).predict(texts)
    assert found["id"].tolist() == list(range(len(texts)))
    assert found["label"].tolist() == [record["label"] for record in records]
    expected = [max(record["probs"]) for record in records]
    assert found["probability"].tolist() == pytest.approx(expected, abs=1e-6)
