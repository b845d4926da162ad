"""First runs on small ordinary tables, with no setting changed, beside plain models of scikit-learn.

    python benchmarks/first_run/run.py [--draw NUMBER] [TABLE ...]

For each table `palm init --from`, `check`, `train`, `predict` and `evaluate`, scored on new rows. It prints a
Markdown table. The exit code is 1 where a plain model is better by more than five points. Needs the extra
`judges`.
"""

from __future__ import annotations

import argparse
import contextlib
import csv
import io
import json
import os
import tempfile
from pathlib import Path
from typing import Any

from judges import score
from tables import TABLES, rows

from palm.cli import main as palm

ROWS = 300
NEW_ROWS = 200
NAMED = {"visits": ("--tasks", "visits=count")}
"""Table -> options of `palm init`, which takes whole numbers for classes."""

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


def run(*arguments: str) -> list[str]:
    """Run palm's command, which must succeed, and return the lines that it prints."""
    output = io.StringIO()
    with contextlib.redirect_stdout(output):
        assert palm([*arguments]) == 0, arguments
    return output.getvalue().splitlines()


def main_score(scores: dict[str, float]) -> tuple[str, float]:
    """Return the first metric that rises from 0 to 1, or to 100 percent, and its score from 0 to 1."""
    metric = next(name for name in scores if name not in ("poisson_deviance", "perplexity"))
    return metric, scores[metric] / (100 if metric == "f1" else 1)


def scores_of_a_first_run(name: str, folder: Path, draw: int) -> dict[str, tuple[str, float, float]]:
    """Return task -> its first metric, and the scores of palm and of scikit-learn on new rows."""
    table, new = rows(name, ROWS, draw), rows(name, NEW_ROWS, draw + 1)
    path, new_path = write_table(folder / name, table), write_table(folder / "new", new)
    project = folder / "project"
    run("init", str(project), "--from", str(path), *NAMED.get(name, ()))
    config = str(project / "config.yaml")
    for command in ("check", "train", "predict"):
        run(command, config)
    found = {}
    for task in sorted(file.stem for file in project.glob("*.yaml") if file.stem != "config"):
        said = run("evaluate", "--model", str(project / "output" / task), "--input", str(new_path))
        metric, ours = main_score(json.loads(said[-1]))
        found[task] = metric, ours, score(metric, table, new, next(iter(table[0])), task)
    return found


def main() -> int:
    """Return 1 where a plain model is much better, 0 otherwise."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--draw", type=int, default=1, help="seed of the rows")
    parser.add_argument("tables", nargs="*", metavar="TABLE", help=f"of {', '.join(TABLES)}; default: all")
    given = parser.parse_args()
    print("| table | task | metric | palm | scikit-learn |\n|---|---|---|---|---|", flush=True)
    is_worse = False
    for name in given.tables or TABLES:
        with tempfile.TemporaryDirectory() as folder:
            os.environ["PALM_DATA_CACHE"] = str(Path(folder) / "cache")
            found = scores_of_a_first_run(name, Path(folder), given.draw)
        for task, (metric, ours, plain) in found.items():
            is_worse |= ours < plain - WORSE
            print(f"| {name} | {task} | `{metric}` | {ours:.3f} | {plain:.3f} |", flush=True)
    return int(is_worse)


if __name__ == "__main__":
    raise SystemExit(main())
