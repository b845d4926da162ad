"""Few labels of one task of ATIS, all of the other: does the other help? Two runs of `palm.compare`.

    python benchmarks/few_labels.py --model MINILM --data DATA --output DIR
    python benchmarks/few_labels.py --model MINILM --data DATA --output DIR --budget total

`slot` has 100 labelled sentences and `intent` all 4478, then the reverse. The model after the last step is
scored on the test rows, as there are no dev rows to spare. `--data` holds the folder `atis`. First the
expected CPU time is printed, from a few steps of each task; killed, the same command goes on. `--sample`
chooses other rows: which 100 they are is one draw, and the intervals of a comparison do not count it.
"""

from __future__ import annotations

import argparse
import json
import random
import tempfile
import time
from itertools import islice
from pathlib import Path
from typing import Any

from arguments import run_settings

import palm
from palm.grid.pool import duration

OTHER = {"slot": "intent", "intent": "slot"}
WARM_UP, TIMED = 4, 16


def few_rows(file: Path, rows: int, sample: int, target: Path) -> Path:
    head, *lines = file.read_text(encoding="utf-8").splitlines(keepends=True)
    chosen = random.Random(sample).sample(lines, rows)
    target.parent.mkdir(parents=True, exist_ok=True)
    target.write_text(head + "".join(chosen), encoding="utf-8")
    return target


def config_of(args: argparse.Namespace, target: str, few: Path, save_path: Path) -> dict[str, Any]:
    helper, tasks = OTHER[target], {}
    for name in (target, helper):
        folder = args.data.resolve() / "atis" / name
        labels = json.loads((folder / "label_map.json").read_text(encoding="utf-8"))
        kind = "seq_label" if name == "slot" else "cls"
        tasks[name] = {
            **{"reader": kind, "paradigm": kind, "n_classes": len(labels)},
            "train_file": str(few if name == target else folder / "train.tsv"),
            "batch_size": args.batch_size if name == target else args.helper_batch_size,
            **({"label_map": str(folder / "label_map.json")} if name == "slot" else {}),
        }
    settings = {name: value for name, value in run_settings(args).items() if name != "batch_size"}
    return {
        "task_instance": [target, helper],
        "target_tag": [1, 0],
        "mix_ratio": [1, args.helper_ratio],
        **settings,
        "save_path": str(save_path),
        "tasks": tasks,
    }


def cpu_seconds(config: dict[str, Any], budget: str) -> float:
    """What one seed of both variants will take, from the first steps of a run of both tasks."""
    with tempfile.TemporaryDirectory() as spare:
        training = palm.Controller({**config, "save_path": f"{spare}/out"}, argv=[]).training()
        times: dict[str, list[float]] = {task.name: [] for task in training.tasks}
        before = time.process_time()
        for number, step in enumerate(islice(training.steps(), WARM_UP + TIMED)):
            now = time.process_time()
            if number >= WARM_UP:
                times[step.task.name].append(now - before)
            before = now
        each = {name: sum(taken) / max(1, len(taken)) for name, taken in times.items()}
        steps = {task.name: task.expected_steps for task in training.tasks}
    target = config["task_instance"][0]
    alone = sum(steps.values()) if budget == "total" else steps[target]
    return sum(each[name] * steps[name] for name in steps) + each[target] * alone


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--model", type=Path, required=True, help="a Hugging Face BERT directory")
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--output", type=Path, required=True, help="the folder of all runs")
    parser.add_argument("--targets", nargs="+", choices=list(OTHER), default=list(OTHER))
    parser.add_argument("--rows", type=int, default=100, help="labelled rows of the target")
    parser.add_argument("--sample", type=int, default=0, help="which ones")
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--budget", choices=["target", "total"], default="target")
    parser.add_argument("--epochs", type=float, default=50, help="of the target's rows")
    parser.add_argument(
        "--helper_ratio", type=float, default=1.0, help="steps of the helper, per target step"
    )
    parser.add_argument("--batch_size", type=int, default=16)
    parser.add_argument("--helper_batch_size", type=int, default=32)
    parser.add_argument("--learning_rate", type=float, default=1e-4)
    parser.add_argument("--weight_decay", type=float, default=0.01)
    parser.add_argument("--max_seq_len", type=int, default=64)
    parser.add_argument("--precision", default="auto")
    parser.add_argument("--workers", type=int)
    args = parser.parse_args()
    output = args.output.resolve()
    configs = {}
    for target in args.targets:
        train = args.data / "atis" / target / "train.tsv"
        few = few_rows(train, args.rows, args.sample, output / f"{target}-{args.rows}-{args.sample}.tsv")
        configs[target] = config_of(args, target, few, output / f"{target}-{args.budget}")
    seconds = sum(args.seeds * cpu_seconds(config, args.budget) for config in configs.values())
    print(f"expected CPU time of all runs, without their starts: {duration(seconds)}", flush=True)
    for target, config in configs.items():
        found = palm.compare(
            config,
            seeds=args.seeds,
            budget=args.budget,
            test={target: args.data / "atis" / target / "test.tsv"},
            workers=args.workers,
        )
        print(f"\n{args.rows} rows of {target}, all of {OTHER[target]}\n{found}", flush=True)


if __name__ == "__main__":
    main()
