"""Which learning rate and how many updates suit a pretrained encoder when labelled rows are few?

    python benchmarks/rates.py --model MINILM --data DATA --output FILE.jsonl

Trains one task at a time on some rows drawn from its training file, with every rate, factor of the head's
rate, number of updates and seed, and scores the last model on the test file. A seed draws the rows and starts
the training, so all rates are paired by seed. `--data` holds the folders `atis`, `sst2` and `rte`. One JSON
line a run; the same command goes on where it stopped. `--table` only prints the means of what is in the file.
"""

from __future__ import annotations

import json
import random
import statistics
import tempfile
from argparse import Namespace
from collections.abc import Iterator
from itertools import product
from pathlib import Path
from typing import Any

from arguments import add_training, new_parser, run_settings

import palm

CASES: dict[str, tuple[str, str, dict[str, Any], str]] = {
    "slots": ("atis/slot", "test.tsv", {"reader": "seq_label", "paradigm": "seq_label"}, "entity_f1"),
    "intents": ("atis/intent", "test.tsv", {"reader": "cls", "paradigm": "cls", "n_classes": 22}, "accuracy"),
    "sst2": ("sst2", "dev.tsv", {"reader": "cls", "paradigm": "cls", "n_classes": 2}, "accuracy"),
    "rte": ("rte", "val.tsv", {"reader": "match", "paradigm": "match"}, "accuracy"),
}
"""Case -> its folder, its test file, what its task is, and the metric that is compared."""


def few_rows(train: Path, rows: int, seed: int, target: Path) -> Path:
    """Write some rows of a training file, drawn by the seed."""
    head, *lines = train.read_text(encoding="utf-8").splitlines(keepends=True)
    target.write_text(head + "".join(random.Random(seed).sample(lines, rows)), encoding="utf-8")
    return target


def score(args: Namespace, case: str, rows: int, rate: float, steps: int, seed: int, factor: float) -> float:
    """Train once, and score the last model on the test file."""
    place, test, task, metric = CASES[case]
    folder = args.data / place
    if case == "slots":
        labels = folder / "label_map.json"
        task = {**task, "label_map": str(labels), "n_classes": len(json.loads(labels.read_text("utf-8")))}
    with tempfile.TemporaryDirectory() as run:
        train = few_rows(folder / "train.tsv", rows, seed, Path(run) / "few.tsv")
        config = {
            "task_instance": "task",
            "tasks": {"task": {"train_file": str(train), "dev_file": str(folder / test), **task}},
            **run_settings(args),
            "learning_rate": rate,
            "head_learning_rate": factor * rate,
            "num_epochs": None,
            "max_steps": steps,
            "save_path": f"{run}/out",
            "random_seed": seed,
            "metrics": [metric],
        }
        training = palm.Controller(config, argv=[]).training()
        for _ in training.steps():
            pass
        return float(palm.Evaluator(training).evaluate().scores["task"][metric])


def runs_of(args: Namespace) -> Iterator[tuple[str, int, float, int, int, float]]:
    for seed, rows, case, steps, rate, factor in product(
        range(1, args.seeds + 1), args.rows, args.cases, args.steps, args.rates, args.head_factors
    ):
        yield case, rows, rate, steps, seed, factor


def table(lines: list[dict[str, Any]]) -> str:
    """Means over seeds and their standard errors in points, one line per case, rows and updates."""
    scores: dict[tuple[str, int, int], dict[tuple[float, float], list[float]]] = {}
    for line in lines:
        cell = scores.setdefault((line["case"], line["rows"], line["steps"]), {})
        cell.setdefault((line["rate"], line["factor"]), []).append(100 * line["score"])
    rates = sorted({(line["rate"], line["factor"]) for line in lines})
    names = [f"{rate:g}" + (f", head {factor * rate:g}" if factor != 1 else "") for rate, factor in rates]
    text = ["| case | rows | updates | " + " | ".join(names) + " |"]
    text.append("|---" * (3 + len(rates)) + "|")
    for (case, rows, steps), cell in sorted(scores.items()):
        cells = [mean_of(cell.get(rate, [])) for rate in rates]
        text.append(f"| {case} | {rows} | {steps} | " + " | ".join(cells) + " |")
    return "\n".join(text)


def mean_of(points: list[float]) -> str:
    if not points:
        return ""
    error = statistics.stdev(points) / len(points) ** 0.5 if len(points) > 1 else 0.0
    return f"{statistics.mean(points):.1f} ± {error:.1f}"


def main() -> None:
    parser = new_parser(__doc__)
    add_training(parser, batch_size=16, precision="fp32")
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--output", type=Path, required=True)
    parser.add_argument("--cases", nargs="+", default=list(CASES), choices=list(CASES))
    parser.add_argument("--rows", type=int, nargs="+", default=[100])
    parser.add_argument("--rates", type=float, nargs="+", default=[1e-4, 3e-4, 1e-3])
    parser.add_argument("--head_factors", type=float, nargs="+", default=[1.0], help="of the head's rate")
    parser.add_argument("--steps", type=int, nargs="+", default=[60, 240, 600])
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--table", action="store_true")
    args = parser.parse_args()
    done = [json.loads(line) for line in args.output.open(encoding="utf-8")] if args.output.exists() else []
    if not args.table:
        names = ("case", "rows", "rate", "steps", "seed", "factor")
        known = {tuple(run[name] for name in names) for run in done}
        with args.output.open("a", encoding="utf-8") as file:
            for run in runs_of(args):
                if run not in known:
                    line = {**dict(zip(names, run, strict=True)), "score": score(args, *run)}
                    print(json.dumps(line), file=file, flush=True)
                    done.append(line)
    print(table(done))


if __name__ == "__main__":
    main()
