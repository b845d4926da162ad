"""palm and the same loop in Hugging Face, side by side over several seeds: does its dropout cost anything?

    python benchmarks/dropout_accuracy.py --model DIR --data DATA

`--data` has the folders `rte`, `sst2`, `atis/intent` and `atis/slot` in the form that `palm_accuracy.py`
takes, and `--rows` trains on the first rows of each. For every task and seed it prints one JSON line a
program, and at the end a table: the mean of each program over both held-out files (weighted by their rows)
and all seeds, and the mean of the differences of equal seeds with its standard error.
"""

from __future__ import annotations

import json
import math
import shutil
import statistics
import tempfile
from argparse import Namespace
from itertools import islice
from pathlib import Path
from typing import Any

import hf_reference
import palm_accuracy
from arguments import new_parser

TASKS: dict[str, dict[str, Any]] = {
    "rte": {"folder": "rte", "test": "val.tsv", "epochs": 3},
    "sst2": {"folder": "sst2", "test": "test.tsv", "epochs": 3},
    "intent": {"folder": "atis/intent", "test": "test.tsv", "epochs": 5},
    "slot": {"folder": "atis/slot", "test": "test.tsv", "epochs": 5},
}
PROGRAMS = {"palm": palm_accuracy.train, "hugging_face": hf_reference.train}


def training_file(options: Namespace, folder: Path, run: Path) -> Path:
    """Write the first rows of a training file and the names of its labels, if it has them, under `run`."""
    with (folder / "train.tsv").open(encoding="utf-8") as file:
        (run / "train.tsv").write_text("".join(islice(file, options.rows and options.rows + 1)), "utf-8")
    if (folder / "label_map.json").exists():
        shutil.copy(folder / "label_map.json", run)
    return run / "train.tsv"


def arguments_of(options: Namespace, task: str, run: Path) -> Namespace:
    """Return what both programs take for one task."""
    told = TASKS[task]
    folder = options.data / told["folder"]
    return Namespace(
        model=options.model,
        train=training_file(options, folder, run),
        dev=folder / "dev.tsv",
        test=folder / told["test"],
        epochs=options.epochs or told["epochs"],
        batch_size=options.batch_size,
        learning_rate=options.learning_rate,
        weight_decay=0.01,
        max_seq_len=128,
        precision=options.precision,
    )


def compare(options: Namespace, task: str, run: Path) -> dict[str, list[float]]:
    """Return program -> its score over both held-out files, by seed."""
    args = arguments_of(options, task, run)
    found: dict[str, list[float]] = {name: [] for name in PROGRAMS}
    for seed in options.seeds:
        for name, train in PROGRAMS.items():  # by turns, so that both see the same load of the machine
            figures = train(args, seed)
            print(json.dumps({"task": task, "program": name, **figures, "train": task}), flush=True)
            sizes = [len(palm_accuracy.rows_of(path)) for path in (args.dev, args.test)]
            right = figures["dev"] * sizes[0] + figures["test"] * sizes[1]
            found[name].append(right / sum(sizes))
    return found


def line_of(task: str, found: dict[str, list[float]]) -> str:
    """Return a line of the table."""
    ours, theirs = found["palm"], found["hugging_face"]
    differences = [one - other for one, other in zip(ours, theirs, strict=True)]
    error = statistics.stdev(differences) / math.sqrt(len(differences)) if len(differences) > 1 else math.nan
    means = [statistics.mean(values) for values in (ours, theirs, differences)]
    return (
        f"| {task} | {means[0]:.4f} | {means[1]:.4f} | {means[2]:+.4f} ± {error:.4f} | "
        f"{sum(d > 0 for d in differences)} of {len(differences)} |"
    )


def main() -> None:
    parser = new_parser(__doc__)
    parser.add_argument("--model", type=Path, required=True, help="a Hugging Face BERT directory")
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--tasks", nargs="+", choices=list(TASKS), default=list(TASKS))
    parser.add_argument("--seeds", type=int, nargs="+", default=[1, 2, 3, 4, 5])
    parser.add_argument("--epochs", type=int, help="in place of each task's own number")
    parser.add_argument("--rows", type=int, help="all where absent")
    parser.add_argument("--batch_size", type=int, default=32)
    parser.add_argument("--learning_rate", type=float, default=5e-5)
    parser.add_argument("--precision", default="fp32", choices=("fp32", "bf16"))
    options = parser.parse_args()
    lines = []
    for task in options.tasks:
        with tempfile.TemporaryDirectory() as folder:
            lines.append(line_of(task, compare(options, task, Path(folder))))
    print("| task | palm | Hugging Face | difference ± standard error | seeds with palm above |")
    print("|---|---|---|---|---|", *lines, sep="\n")


if __name__ == "__main__":
    main()
