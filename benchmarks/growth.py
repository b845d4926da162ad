"""What grows with the number of tasks and of rows: start, steps, memory and checkpoints, with a tiny encoder.

    python benchmarks/growth.py --output report.md
    python benchmarks/growth.py --quick                 # a few tasks and rows, in seconds

Tasks read one file of short rows; each has a head of its own. Rows are made up, tasks and rows grow
separately, and every line is a process of its own on one thread. Seconds are CPU seconds of the process, so
that other programs hardly disturb them, but for the checkpoint's, which are of the wall. A step is the
median of all that were taken. A process's own memory is what it has at the end, without pages of files.
"""

from __future__ import annotations

import logging
import os
import random
import tempfile
import time
from concurrent.futures import ProcessPoolExecutor
from itertools import islice, pairwise
from pathlib import Path
from statistics import median
from typing import Any

from arguments import OWN_PROCESS, new_parser

SPECIAL = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
WARM_UP, STEPS = 5, 40


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


def memory() -> dict[str, float]:
    """Peak and own memory of this process, in MB."""
    import torch

    from palm.train.display import memory_bytes

    peak = (memory_bytes(torch.device("cpu")) or 0) / 2**20
    status = Path("/proc/self/status")
    lines = status.read_text(encoding="utf-8").splitlines() if status.exists() else []
    own = next((int(line.split()[1]) / 2**10 for line in lines if line.startswith("RssAnon")), float("nan"))
    return {"peak": peak, "own": own}


def configuration(folder: Path, num_tasks: int) -> dict[str, Any]:
    """As many tasks on the folder's file."""
    words = len((folder / "vocab.txt").read_text(encoding="utf-8").splitlines())
    task = {"train_file": str(folder / "train.tsv"), "reader": "cls", "paradigm": "cls", "n_classes": 2}
    names = [f"task{k}" for k in range(num_tasks)]
    return {
        "task_instance": names,
        "tasks": dict.fromkeys(names, task),
        "backbone": "bert",
        **{"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 2, "vocab_size": words},
        **{"max_position_embeddings": 64, "max_seq_len": 32, "vocab_path": str(folder / "vocab.txt")},
        **{"batch_size": 32, "num_epochs": 1, "learning_rate": 1e-4, "save_path": str(folder / "out")},
        **{"use_gpu": False, "precision": "fp32"},
    }


def measure(folder: Path, num_tasks: int) -> dict[str, float]:
    """One run in this process: its start, its steps and its checkpoint."""
    import torch

    import palm
    from palm.train.checkpoint import save_checkpoint

    torch.set_num_threads(1)
    logging.getLogger("palm").setLevel(logging.WARNING)
    began = time.process_time()
    training = palm.Controller(configuration(folder, num_tasks), argv=[]).training()
    ready, seconds = time.process_time(), []
    for _ in islice(training.steps(), WARM_UP + STEPS):
        now = time.process_time()
        seconds.append(now)
    steps = [later - earlier for earlier, later in pairwise(seconds)][WARM_UP:]
    before_saving = time.perf_counter()
    save_checkpoint(training, folder / "out" / "checkpoint")
    saved = time.perf_counter() - before_saving
    files = [file for file in (folder / "out" / "checkpoint").rglob("*") if file.is_file()]
    size = sum(file.stat().st_size for file in files) / 2**20
    found = {"start": ready - began, "step": 1e3 * median(steps), "save": saved, "size": size}
    return {**found, **memory(), "parameters": sum(p.numel() for p in training.model.parameters())}


def measured(folder: Path, num_tasks: int) -> dict[str, float]:
    """The same in a process of its own."""
    os.environ["PALM_DATA_CACHE"] = str(folder / "cache")
    with ProcessPoolExecutor(1, OWN_PROCESS) as pool:
        return pool.submit(measure, folder, num_tasks).result()


HEADER = """
| tasks | rows | start | start, CPU s | step, ms | peak MiB | own MiB | saved MiB | save, s | parameters |
|---|---|---|---|---|---|---|---|---|---|"""


def line_of(folder: Path, num_tasks: int, num_rows: int, how: str) -> str:
    """A line of the table."""
    found = measured(folder, num_tasks)
    times = f"{found['start']:.2f} | {found['step']:.1f} | {found['peak']:.0f} | {found['own']:.0f}"
    checkpoint = f"{found['size']:.1f} | {found['save']:.2f} | {found['parameters']:,.0f}"
    return f"| {num_tasks} | {num_rows:,} | {how} | {times} | {checkpoint} |"


def main() -> None:
    parser = new_parser(__doc__)
    parser.add_argument("--tasks", type=int, nargs="+", default=[1, 10, 50, 200])
    parser.add_argument("--rows", type=int, nargs="+", default=[10_000, 100_000, 1_000_000])
    parser.add_argument("--quick", action="store_true", help="3 tasks at most, and 4000 rows")
    parser.add_argument("--output", type=Path, help="a Markdown file to append the table to")
    args = parser.parse_args()
    if args.quick:
        args.tasks, args.rows = [1, 3], [2_000, 4_000]

    def report(text: str) -> None:
        print(text, flush=True)
        if args.output:
            with args.output.open("a", encoding="utf-8") as file:
                file.write(f"{text}\n")

    report(HEADER)
    for num_rows in args.rows:
        with tempfile.TemporaryDirectory(prefix="palm-growth-") as name:
            folder = Path(name)
            write_data(folder, num_rows)
            report(line_of(folder, 1, num_rows, "first"))
            several = args.tasks if num_rows == args.rows[0] else [1]
            for num_tasks in several:
                report(line_of(folder, num_tasks, num_rows, "second"))


if __name__ == "__main__":
    main()
