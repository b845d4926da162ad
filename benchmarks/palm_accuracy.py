"""Train one cls or match task with palm on real weights, as `hf_reference.py` does with Hugging Face.

    python benchmarks/palm_accuracy.py --model DIR --train train.tsv --dev dev.tsv --epochs 3

One JSON line per seed.
"""

from __future__ import annotations

import argparse
import csv
import json
import tempfile
import time
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from arguments import read_arguments, run_settings

import palm


def labels_of(path: Path) -> list[int]:
    with path.open(encoding="utf-8", newline="") as file:
        return [int(row["label"]) for row in csv.DictReader(file, delimiter="\t", quoting=csv.QUOTE_NONE)]


def kind_of(path: Path) -> str:
    with path.open(encoding="utf-8") as file:
        return "match" if "text_b" in file.readline() else "cls"


def config_of(args: argparse.Namespace, seed: int, folder: str) -> dict[str, Any]:
    kind = kind_of(args.train)
    task = {"train_file": str(args.train.resolve()), "reader": kind, "paradigm": kind}
    if kind == "cls":
        task["n_classes"] = max(labels_of(args.train) + labels_of(args.dev)) + 1
    return {
        "task_instance": "task",
        "tasks": {"task": task},
        **run_settings(args),
        "optimizer": "adam",
        "save_path": folder,
        "overwrite": True,
        "random_seed": seed,
    }


def accuracy(records: Iterable[dict[str, Any]], path: Path) -> float:
    labels = labels_of(path)
    return sum(r["label"] == label for r, label in zip(records, labels, strict=True)) / len(labels)


def train(args: argparse.Namespace, seed: int) -> dict[str, Any]:
    with tempfile.TemporaryDirectory() as folder:
        controller = palm.Controller(config_of(args, seed, folder), argv=[])
        started = time.process_time()
        controller.train()
        seconds = time.process_time() - started
        model = palm.load_model(Path(folder) / "task" / "infer_model", precision=args.precision)
        files = {"dev": args.dev, **({"test": args.test} if args.test else {})}
        scores = {
            name: accuracy(model.predict_file(path, Path(folder) / name), path)
            for name, path in files.items()
        }
    told = {"train": str(args.train), "seed": seed, "precision": args.precision}
    return {**told, "cpu_seconds": round(seconds), **scores}


def main() -> None:
    args = read_arguments(__doc__)
    for seed in args.seeds:
        print(json.dumps(train(args, seed)), flush=True)


if __name__ == "__main__":
    main()
