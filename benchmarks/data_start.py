"""How long training takes to start on a large file, and how much memory: first start, second start, no cache.

    python benchmarks/data_start.py --rows 1000 100000 1000000

Writes files of short rows into a temporary folder and starts, each time in a new process, a run of five
steps on a tiny encoder. Prints a Markdown table. Peak memory is the system's count (not on Windows), which
includes mapped pages; own memory cannot be given back (`RssAnon`; on Linux only).
"""

from __future__ import annotations

import argparse
import json
import os
import random
import subprocess
import sys
import tempfile
import time
from itertools import islice
from pathlib import Path
from typing import Any

STARTS: list[tuple[str, dict[str, Any]]] = [
    ("no cache", {"use_data_cache": False}),
    ("first start", {}),
    ("second start", {}),
    ("second start, by tokens", {"max_tokens_per_batch": 512}),
]
STEPS = 5
SPECIAL = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]


def write_data(folder: Path, num_rows: int) -> None:
    """A vocabulary of made-up words, and rows of 4 to 24 of them with one of two labels."""
    rng = random.Random(0)
    syllables = [a + b for a in "bdfgklmnprstvz" for b in "aeiou"]
    words = sorted({"".join(rng.choices(syllables, k=rng.randint(1, 3))) for _ in range(8000)})
    (folder / "vocab.txt").write_text("\n".join(SPECIAL + words), encoding="utf-8")
    with (folder / "train.tsv").open("w", encoding="utf-8") as file:
        file.write("label\ttext_a\n")
        for _ in range(num_rows):
            file.write(f"{rng.randrange(2)}\t{' '.join(rng.choices(words, k=rng.randint(4, 24)))}\n")


def start(folder: Path, settings: dict[str, Any], began: float) -> dict[str, Any]:
    """Start a run in this process and measure it."""
    import palm

    words = len((folder / "vocab.txt").read_text(encoding="utf-8").splitlines())
    config = {
        "task_instance": "task",
        "tasks": {"task": {"train_file": "train.tsv", "reader": "cls", "paradigm": "cls", "n_classes": 2}},
        "backbone": "bert",
        **{"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 2},
        **{"vocab_size": words, "max_position_embeddings": 64, "max_seq_len": 32, "vocab_path": "vocab.txt"},
        **{"batch_size": 32, "num_epochs": 1, "learning_rate": 1e-4, "save_path": "out", "use_gpu": False},
        **settings,
    }
    os.chdir(folder)
    controller = palm.Controller(config, argv=[])
    built, worked = time.time(), time.process_time()
    training = controller.training()
    ready, done = time.time(), time.process_time()
    losses = [step.loss.item() for step in islice(training.steps(), STEPS)]
    return {
        "data": ready - built,
        "cpu": done - worked,
        "all": time.time() - began,
        **memory(),
        "loss": losses[-1],
    }


def memory() -> dict[str, float]:
    """Peak and own memory of this process, in MB."""
    import torch

    from palm.engine.watching.throughput import memory_bytes

    peak = (memory_bytes(torch.device("cpu")) or 0) / 2**20
    status = Path("/proc/self/status")
    lines = status.read_text(encoding="utf-8").splitlines() if status.exists() else []
    own = next((int(line.split()[1]) / 2**10 for line in lines if line.startswith("RssAnon")), float("nan"))
    return {"peak": peak, "own": own}


def measured(folder: Path, settings: dict[str, Any]) -> dict[str, Any]:
    """The same in a process of its own."""
    words = [sys.executable, __file__, "--start", str(folder), json.dumps(settings), str(time.time())]
    environment = {**os.environ, "PALM_DATA_CACHE": str(folder / "cache")}
    output = subprocess.run(words, check=True, stdout=subprocess.PIPE, text=True, env=environment).stdout
    found: dict[str, Any] = json.loads(output.splitlines()[-1])
    return found


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--rows", type=int, nargs="+", default=[1_000, 100_000, 1_000_000])
    parser.add_argument("--start", nargs=3, help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.start:
        folder, settings, began = args.start
        print(json.dumps(start(Path(folder), json.loads(settings), float(began))))
        return
    titles = [
        "rows",
        "start",
        "reading (s)",
        "in CPU-s",
        "program to step 5 (s)",
        "peak MB",
        "own MB",
        "loss",
    ]
    print(f"| {' | '.join(titles)} |\n|{'---|' * len(titles)}")
    for num_rows in args.rows:
        with tempfile.TemporaryDirectory(prefix="palm-data-start-") as name:
            write_data(Path(name), num_rows)
            for title, settings in STARTS:
                found = measured(Path(name), settings)
                times = f"{found['data']:.2f} | {found['cpu']:.2f} | {found['all']:.1f}"
                sizes = f"{found['peak']:.0f} | {found['own']:.0f}"
                print(f"| {num_rows:,} | {title} | {times} | {sizes} | {found['loss']:.6f} |", flush=True)


if __name__ == "__main__":
    main()
