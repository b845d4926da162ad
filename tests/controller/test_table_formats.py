"""ATIS and RTE in every format: the same encoded rows, and the same trained weights, bit by bit."""

from __future__ import annotations

import csv
import gzip
import json
import random
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from torch import equal

from helpers import tiny
from helpers.shared import SHARED, needs_shared
from palm.controller.controller import Controller
from palm.train.loop import Training

pytestmark = needs_shared
ATIS = SHARED / "data" / "atis"
Rows = list[dict[str, Any]]


def rows_of(name: str) -> Rows:
    """The training rows of a task; the files are read here by hand."""
    lines = (SHARED / "data" / name / "train.tsv").read_text("utf-8").split("\n")[:-1]
    header = lines[0].split("\t")
    return [dict(zip(header, line.split("\t"), strict=True)) for line in lines[1:]]


def write(folder: Path, kind: str, rows: Rows) -> Path:
    """Write the rows of a table."""
    folder.mkdir()
    path = folder / f"rows.{kind}"
    if kind == "jsonl":
        path.write_text("".join(json.dumps(row) + "\n" for row in rows), "utf-8")
    elif kind == "parquet":
        arrow = pytest.importorskip("pyarrow")
        table = arrow.Table.from_pylist(rows)
        pytest.importorskip("pyarrow.parquet").write_table(table, path, row_group_size=1000)
    elif kind == "shards":
        third = len(rows) // 3
        write(folder / "1", "csv", rows[:third]).rename(folder / "part-1.csv")
        write(folder / "2", "jsonl", rows[third : 2 * third]).rename(folder / "part-2.jsonl")
        write(folder / "3", "csv.gz", rows[2 * third :]).rename(folder / "part-3.csv.gz")
        return folder
    else:
        with (
            gzip.open(path, "wt", encoding="utf-8", newline="")
            if kind == "csv.gz"
            else path.open("w", encoding="utf-8", newline="") as file
        ):
            writer = csv.DictWriter(file, rows[0])
            writer.writeheader()
            writer.writerows(rows)
    return path


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A tiny encoder with the most frequent words of both data sets."""
    place = tiny.write_files(tmp_path_factory.mktemp("formats"))
    texts = (row["text_a"] for name in ("rte", "atis/intent") for row in rows_of(name))
    counts = Counter(word for text in texts for word in text.lower().split())
    words = [*tiny.SPECIAL, *(word for word, _ in counts.most_common(400))]
    (place / "vocab.txt").write_text("\n".join(words) + "\n", "utf-8")
    sizes = {**tiny.BACKBONE, "vocab_size": len(words)}
    (place / "backbone.json").write_text(json.dumps(sizes), "utf-8")
    return place


def started(folder: Path, tasks: dict[str, dict[str, Any]]) -> Training:
    kinds = {
        "rte": {"reader": "cls", "paradigm": "cls", "n_classes": 2},
        "intent": {"reader": "cls", "paradigm": "cls", "n_classes": 26},
        "slot": {
            "reader": "seq_label",
            "paradigm": "seq_label",
            "label_map": str(ATIS / "slot" / "label_map.json"),
        },
    }
    made = tiny.config(folder, "cls", batch_size=8, max_steps=8, task_instance=[*tasks])
    made["tasks"] = {name: {**kinds[name], **tasks[name]} for name in tasks}
    return Controller(made, argv=[]).training()


def results(training: Training) -> tuple[list[str], list[float], dict[str, Any]]:
    """The digests of the encoded rows, and losses and weights after eight steps."""
    digests = [task.stream.rows.digest for task in training.tasks if task.stream is not None]
    losses = [float(step.loss) for step in training.steps()]
    return digests, losses, training.model.state_dict()


def assert_same(one: tuple[Any, Any, dict[str, Any]], other: tuple[Any, Any, dict[str, Any]]) -> None:
    assert one[:2] == other[:2]
    assert one[2].keys() == other[2].keys()
    assert all(equal(weights, other[2][name]) for name, weights in one[2].items())


@pytest.fixture(scope="module")
def of_tsv(folder: Path) -> tuple[Any, Any, dict[str, Any]]:
    """Of the files as they are."""
    names = {"rte": "rte", "intent": "atis/intent", "slot": "atis/slot"}
    paths = {task: str(SHARED / "data" / name / "train.tsv") for task, name in names.items()}
    return results(started(folder, {task: {"train_file": path} for task, path in paths.items()}))


@pytest.mark.parametrize("kind", ["csv", "jsonl", "parquet", "csv.gz", "shards"])
def test_every_format_trains_the_same_weights(
    folder: Path, tmp_path: Path, kind: str, of_tsv: tuple[Any, Any, dict[str, Any]]
) -> None:
    names = {"rte": "rte", "intent": "atis/intent", "slot": "atis/slot"}
    tasks = {
        task: {"train_file": str(write(tmp_path / task, kind, rows_of(name)))} for task, name in names.items()
    }
    made = results(started(folder, tasks))
    assert len(made[1]) == 8
    assert_same(made, of_tsv)


def together() -> list[dict[str, Any]]:
    """ATIS as one table, with words and slots as lists and intents as numbers."""
    both = zip(rows_of("atis/intent"), rows_of("atis/slot"), strict=True)
    return [
        {"text": one["text_a"].split(" "), "intent": int(one["label"]), "slots": other["label"].split(" ")}
        for one, other in both
    ]


COLUMNS = {"intent": {"text_a": "text", "label": "intent"}, "slot": {"text_a": "text", "label": "slots"}}


def test_one_table_of_intents_and_slots_is_two_files(folder: Path, tmp_path: Path) -> None:
    table = write(tmp_path / "both", "jsonl", together())
    one = {task: {"train_file": str(table), "columns": columns} for task, columns in COLUMNS.items()}
    two = {task: {"train_file": str(ATIS / task / "train.tsv")} for task in COLUMNS}
    assert_same(results(started(folder, one)), results(started(folder, two)))


def test_with_a_third_of_the_labels_gone_each_task_trains_on_the_rows_that_have_one(
    folder: Path, tmp_path: Path
) -> None:
    rows = together()
    draw = random.Random(0)
    for name in ("intent", "slots"):
        for row in draw.sample(rows, len(rows) // 3):
            row[name] = None
    table = write(tmp_path / "some", "jsonl", rows)
    training = started(
        folder, {task: {"train_file": str(table), "columns": columns} for task, columns in COLUMNS.items()}
    )
    for task, name in zip(training.tasks, ("intent", "slots"), strict=True):
        labelled = [row for row in rows if row[name] is not None]
        assert len(labelled) == 2986
        alone = write(tmp_path / name, "jsonl", labelled)
        expected = started(folder, {task.name: {"train_file": str(alone), "columns": COLUMNS[task.name]}})
        assert task.stream is not None
        assert expected.tasks[0].stream is not None
        assert task.stream.rows.digest == expected.tasks[0].stream.rows.digest
        found = [example.place for example in task.reader.read(table, True)]
        assert found == [f"{table}:{n}" for n, row in enumerate(rows, start=1) if row[name] is not None]
