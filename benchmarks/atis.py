"""Slot filling and intents of ATIS, together on one encoder or each alone, through `MultiHeadTrainer`.

    python benchmarks/atis.py --model DIR --data atis --tasks slot intent --learning_rate 1e-4

`--data` has the folders `slot` and `intent`, each with train.tsv, dev.tsv, test.tsv and label_map.json.
Slots are labelled by name, intents by number. One JSON line per seed: entity F1 of the slots and accuracy
of the intents, after the last epoch.
"""

from __future__ import annotations

import argparse
import csv
import json
import tempfile
import time
from pathlib import Path
from typing import Any

from arguments import add_training, new_parser

import palm.compat as palm

READERS = {"slot": palm.reader.SequenceLabelReader, "intent": palm.reader.ClassifyReader}


def reader_of(args: argparse.Namespace, task: str, phase: str, seed: int, file: str) -> palm.reader.Reader:
    names = {"label_map": args.data / task / "label_map.json"} if task == "slot" else {}
    reader = READERS[task](
        vocab_path=args.model / "vocab.txt",
        max_seq_len=args.max_seq_len,
        do_lower_case=True,
        seed=seed,
        phase=phase,
        **names,
    )
    reader.load_data(args.data / task / f"{file}.tsv", args.batch_size, num_epochs=None)
    return reader


def head_of(args: argparse.Namespace, task: str, width: int, phase: str) -> palm.head.Head:
    num_labels = len(json.loads((args.data / task / "label_map.json").read_text(encoding="utf-8")))
    if task == "slot":
        return palm.head.SequenceLabel(num_labels, width, phase=phase, use_crf=args.use_crf)
    return palm.head.Classify(num_labels, width, phase=phase)


def labels_of(path: Path) -> list[str]:
    with path.open(encoding="utf-8", newline="") as file:
        return [row["label"] for row in csv.DictReader(file, delimiter="\t", quoting=csv.QUOTE_NONE)]


def score(task: str, records: list[dict[str, Any]], path: Path) -> float:
    true = labels_of(path)
    if task == "slot":
        predicted = [record["labels"] for record in records]
        return palm.metrics.entity_scores(predicted, [labels.split() for labels in true])["f1"]
    return sum(record["label"] == int(label) for record, label in zip(records, true, strict=True)) / len(true)


def trained(args: argparse.Namespace, seed: int, folder: Path) -> None:
    """Train, and save a model of each task under `folder`."""
    bert, trainers = palm.load_backbone(args.model), []
    readers = [reader_of(args, task, "train", seed, "train") for task in args.tasks]
    for task in args.tasks:
        trainers.append(palm.Trainer(task))
        trainers[-1].build_forward(bert, head_of(args, task, bert.settings["hidden_size"], "train"))
    for reader in readers:
        reader.register_with(bert)
    trainer = palm.MultiHeadTrainer(trainers, precision=args.precision)
    loss = trainer.build_forward()
    steps = args.epochs * sum(reader.num_examples // args.batch_size for reader in readers)
    schedule = palm.lr_sched.TriangularScheduler(int(0.1 * steps), steps)
    adam = palm.optimizer.Adam(loss, args.learning_rate, schedule, grad_clip=1.0)
    trainer.build_backward(adam, weight_decay=args.weight_decay)
    trainer.fit_readers_with_mixratio(readers, args.tasks[0], args.epochs)
    trainer.train(print_steps=200)
    trainer.save(folder, "predict")


def run(args: argparse.Namespace, seed: int) -> dict[str, Any]:
    with tempfile.TemporaryDirectory() as name:
        folder, started = Path(name), time.process_time()
        trained(args, seed, folder)
        figures: dict[str, Any] = {"seed": seed, "cpu_seconds": round(time.process_time() - started)}
        for task in args.tasks:
            model = palm.load_model(
                folder / task if len(args.tasks) > 1 else folder, precision=args.precision
            )
            for file in ("dev", "test"):
                path = args.data / task / f"{file}.tsv"
                figures[f"{task} {file}"] = score(
                    task, list(model.predict_file(path, folder / "pred" / task / file)), path
                )
    return figures


def main() -> None:
    parser = new_parser(__doc__)
    add_training(parser, epochs=10, learning_rate=1e-4)
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--tasks", nargs="+", choices=list(READERS), default=list(READERS))
    parser.add_argument("--use_crf", action="store_true")
    parser.add_argument("--seeds", type=int, nargs="+", default=[1, 2, 3])
    args = parser.parse_args()
    for seed in args.seeds:
        print(json.dumps({"tasks": args.tasks, **run(args, seed)}), flush=True)


if __name__ == "__main__":
    main()
