"""A first run on small ordinary data, with no setting changed, beside a plain model of scikit-learn."""

from __future__ import annotations

import csv
import json
import os
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest

from first_run.tables import TABLES, rows
from palm.cli import main

# A real training for each table. Importing scikit-learn takes seconds, also where this is not run.
pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(find_spec("sklearn") is None, reason="scikit-learn is not installed"),
]

ROWS = 300
NEW_ROWS = 200
DRAW = int(os.environ.get("FIRST_RUN_DRAW", "1"))
NAMED = {"visits": ("--tasks", "visits=count"), "reports": ("--tasks", "label=match")}
"""Table -> options of `palm init`, which takes whole numbers and labels of pairs for classes."""

WORSE = 0.05
"""The most by which the plain model may be better."""


def write_table(path: Path, table: list[dict[str, Any]]) -> Path:
    """Write rows as CSV, or as JSON lines if they have lists."""
    if any(isinstance(cell, list) for cell in table[0].values()):
        path = path.with_suffix(".jsonl")
        path.write_text("".join(json.dumps(row) + "\n" for row in table), encoding="utf-8")
        return path
    path = path.with_suffix(".csv")
    with path.open("w", newline="", encoding="utf-8") as file:
        writer = csv.DictWriter(file, [*table[0]])
        writer.writeheader()
        writer.writerows(table)
    return path


def run(*arguments: str) -> None:
    """Run palm's command, which must succeed."""
    assert main([*arguments]) == 0, arguments


def main_score(scores: dict[str, float]) -> tuple[str, float]:
    """Return the first metric that rises from 0 to 1, or to 100 percent, and its score from 0 to 1."""
    metric = next(name for name in scores if name not in ("poisson_deviance", "perplexity"))
    return metric, scores[metric] / (100 if metric == "f1" else 1)


def scores_of_a_first_run(name: str, folder: Path, capfd: Any) -> dict[str, tuple[str, float, float]]:
    """Return task -> its first metric, and the scores of palm and of scikit-learn on new rows."""
    from first_run.judges import score

    table, new = rows(name, ROWS, DRAW), rows(name, NEW_ROWS, DRAW + 1)
    path, new_path = write_table(folder / name, table), write_table(folder / "new", new)
    project = folder / "project"
    run("init", str(project), "--from", str(path), *NAMED.get(name, ()))
    config = str(project / "config.yaml")
    run("check", config)
    run("train", config)
    run("predict", config)
    found = {}
    for file in sorted(project.glob("*.yaml")):
        if file.stem == "config":
            continue
        capfd.readouterr()
        run("evaluate", "--model", str(project / "output" / file.stem), "--input", str(new_path))
        metric, ours = main_score(json.loads(capfd.readouterr().out.splitlines()[-1]))
        text = next(iter(table[0]))
        found[file.stem] = metric, ours, score(metric, table, new, text, file.stem)
    return found


@pytest.mark.parametrize("name", TABLES)
def test_a_plain_model_is_not_much_better(
    name: str,
    tmp_path: Path,
    capfd: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
    record_property: Any,
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PALM_DATA_CACHE", str(tmp_path / "cache"))
    found = scores_of_a_first_run(name, tmp_path, capfd)
    record_property("scores", found)
    assert found
    for task, (metric, ours, plain) in found.items():
        assert ours >= plain - WORSE, (task, metric, ours, plain)
