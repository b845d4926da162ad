"""Train one task (cls, match, seq_label) on real weights, as `hf_reference.py` does with Hugging Face.

    python benchmarks/palm_accuracy.py --model DIR --train train.tsv --dev dev.tsv --epochs 3

Labels are numbers, or names of word labels with `label_map.json` beside the training file. One JSON line per
seed, with accuracy, or entity F1 of word labels.
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


def rows_of(path: Path) -> list[dict[str, str]]:
    with path.open(encoding="utf-8", newline="") as file:
        return list(csv.DictReader(file, delimiter="\t", quoting=csv.QUOTE_NONE))


def kind_of(path: Path) -> str:
    row = rows_of(path)[0]
    if not row["label"].isdecimal():
        return "seq_label"
    return "match" if "text_b" in row else "cls"


def config_of(args: argparse.Namespace, seed: int, folder: str) -> dict[str, Any]:
    kind = kind_of(args.train)
    task = {"train_file": str(args.train.resolve()), "reader": kind, "paradigm": kind}
    if kind == "cls":
        rows = rows_of(args.train) + rows_of(args.dev)
        task["n_classes"] = max(int(row["label"]) for row in rows) + 1
    if kind == "seq_label":
        labels = args.train.parent / "label_map.json"
        task |= {"label_map": str(labels), "n_classes": len(json.loads(labels.read_text("utf-8")))}
    return {
        "task_instance": "task",
        "tasks": {"task": task},
        **run_settings(args),
        "optimizer": "adam",
        "save_path": folder,
        "overwrite": True,
        "random_seed": seed,
    }


def score(records: Iterable[dict[str, Any]], path: Path) -> float:
    """Return accuracy, or entity F1 of word labels."""
    labels = [row["label"] for row in rows_of(path)]
    if kind_of(path) == "seq_label":
        predicted = [record["labels"] for record in records]
        return palm.metrics.entity_scores(predicted, [own.split() for own in labels])["f1"]
    return sum(r["label"] == int(own) for r, own in zip(records, labels, strict=True)) / len(labels)


def train(args: argparse.Namespace, seed: int) -> dict[str, Any]:
    with tempfile.TemporaryDirectory() as folder:
        controller = palm.Controller(config_of(args, seed, folder), argv=[])
        started = time.process_time()
        controller.train()
        seconds = time.process_time() - started
        model = palm.load_model(Path(folder) / "task" / "infer_model", precision=args.precision)
        files = {"dev": args.dev, **({"test": args.test} if args.test else {})}
        scores = {
            name: score(model.predict_file(path, Path(folder) / name), path) for name, path in files.items()
        }
    told = {"train": str(args.train), "seed": seed, "precision": args.precision}
    return {**told, "cpu_seconds": round(seconds), **scores}


def main() -> None:
    args = read_arguments(__doc__)
    for seed in args.seeds:
        print(json.dumps(train(args, seed)), flush=True)


if __name__ == "__main__":
    main()
