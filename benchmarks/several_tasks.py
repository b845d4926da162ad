"""What a step of two tasks costs: beside two steps of one, each way of balancing, and comparing the tasks.

    python benchmarks/several_tasks.py --quick                           # a minute, on a tiny encoder
    python benchmarks/several_tasks.py --shape minilm base --threads 2 --output report.md

All variants take turns within one run, a step each, in an order that changes; a ratio is that of one turn,
and the table tells the median and the extremes. Two tasks have 16 rows each, of one text (short) or of two
(pairs); the step of 32 rows is that of one task. On one thread of a CPU, seconds are those of the process,
otherwise those of the wall.
"""

from __future__ import annotations

import argparse
import json
import logging
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import replace
from importlib.util import find_spec
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np
import torch
from speed_cases import SHAPES, VOCABULARY
from speed_runs import clock

import palm
from palm.balance import BALANCES, Balance
from palm.engine.training.loop import Training
from palm.engine.training.transfer import TransferProbe

ROWS, MADE_ROWS = 16, 512
LENGTHS = {"short": (8, 24), "pairs": (60, 124)}
"""Kind of rows -> fewest and most words."""

NEEDS_TORCHJD = ("pcgrad", "cagrad", "mgda", "upgrad")


def write_files(folder: Path, kind: str) -> None:
    """Vocabulary and two data files of random words, with lengths spread evenly."""
    draw = np.random.default_rng(1)
    words = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *(f"w{k}" for k in range(VOCABULARY - 5))]
    (folder / "vocab.txt").write_text("\n".join(words) + "\n", encoding="utf-8")
    for task in ("a", "b"):
        lines = ["label\ttext_a" + ("\ttext_b" if kind == "pairs" else "")]
        for length in draw.integers(*LENGTHS[kind], size=MADE_ROWS):
            row = [f"w{k}" for k in draw.integers(0, VOCABULARY - 5, size=int(length))]
            texts = [row[: len(row) // 3], row[len(row) // 3 :]] if kind == "pairs" else [row]
            lines.append("\t".join([str(draw.integers(2)), *map(" ".join, texts)]))
        (folder / f"{task}.tsv").write_text("\n".join(lines) + "\n", encoding="utf-8")


def training(folder: Path, shape: str, precision: str, **settings: Any) -> Training:
    """A run of two classifiers on the files in `folder`."""
    (folder / "backbone.json").write_text(json.dumps(SHAPES[shape].settings), encoding="utf-8")
    task = {"reader": "cls", "paradigm": "cls", "n_classes": 2}
    given = {
        "task_instance": ["a", "b"],
        "backbone": "bert",
        "backbone_config_path": str(folder / "backbone.json"),
        "vocab_path": str(folder / "vocab.txt"),
        "save_path": str(folder / "out"),
        "max_seq_len": 128,
        "batch_size": ROWS,
        "num_epochs": 1000,
        "learning_rate": 3e-5,
        "precision": precision,
        "use_data_cache": False,
        "tasks": {name: {**task, "train_file": str(folder / f"{name}.tsv")} for name in ("a", "b")},
        **settings,
    }
    return palm.Controller(given, argv=[]).training()


def variants(folder: Path, shape: str, precision: str) -> dict[str, Callable[[], object]]:
    """Name -> one turn of it; all of them train 32 rows, and all but one the same model, for the memory."""
    single = training(folder, shape, precision)
    large = training(folder, shape, precision, batch_size=2 * ROWS)

    def together(balance: Balance | None = None) -> Callable[[], object]:
        recipe = replace(single.recipe, tasks_per_step="all", balance=balance)
        parts = {"model": single.model, "replica": single.replica, "optimizer": single.optimizer}
        run = Training(recipe, **parts)
        return lambda: run.step_on_several([(task, task.batches(task.step)) for task in run.tasks])

    def two_steps() -> None:
        for task in single.tasks:
            single.step_on(task, task.batches(task.step))

    def one_large() -> None:
        task = large.tasks[large.step % 2]
        large.step_on(task, task.batches(task.step))

    made: dict[str, Callable[[], object]] = {
        "one step of two tasks": together(),
        "two steps of one task": two_steps,
        "one step of 32 rows": one_large,
    }
    for name in BALANCES:
        if name not in NEEDS_TORCHJD or find_spec("torchjd"):
            made[f"balance: {name}"] = together(BALANCES[name]())
    return made


def take_turns(made: dict[str, Callable[[], object]], turns: int) -> dict[str, list[float]]:
    """Seconds of every turn of each; two before them do not count."""
    device, names = torch.device("cuda" if torch.cuda.is_available() else "cpu"), list(made)
    seconds: dict[str, list[float]] = {name: [] for name in names}
    for turn in range(-2, turns):
        start = turn % len(names)
        for name in [*names[start:], *names[:start]]:
            began = clock(device)
            made[name]()
            if turn >= 0:
                seconds[name].append(clock(device) - began)
    return seconds


def comparison(folder: Path, shape: str, precision: str, turns: int) -> str:
    """What comparing the tasks adds to a step, at the period that `auto` chooses."""
    run = training(folder, shape, precision)
    probe = TransferProbe(run, "auto")
    seconds = take_turns({"step": run.next_step, "comparison": probe.measure}, max(turns // 4, 2))
    shares = [
        compared / (step * probe.every)
        for step, compared in zip(seconds["step"], seconds["comparison"], strict=True)
    ]
    ratio = median(seconds["comparison"]) / median(seconds["step"])
    return (
        f"Comparing the tasks takes as long as {ratio:.1f} steps; every {probe.every} steps, as with auto, "
        f"that is {median(shares):.1%} of the time ({min(shares):.1%} to {max(shares):.1%})."
    )


def table(seconds: dict[str, list[float]]) -> list[str]:
    """Markdown: every variant's median seconds, and its ratio to the step of two tasks."""
    base = seconds["one step of two tasks"]
    lines = ["| 32 rows as | ms, median | times as long as a step of two tasks |", "|---|---|---|"]
    for name, own in seconds.items():
        ratios = [mine / theirs for mine, theirs in zip(own, base, strict=True)]
        shown = f"{median(ratios):.2f} ({min(ratios):.2f} to {max(ratios):.2f})"
        lines.append(f"| {name} | {1000 * median(own):.1f} | {'1' if own is base else shown} |")
    return lines


def report(shapes: Sequence[str], kinds: Sequence[str], precision: str, threads: int, turns: int) -> str:
    """All tables, as Markdown."""
    logging.disable(logging.WARNING)
    torch.set_num_threads(threads)
    parts = []
    for shape in shapes:
        for kind in kinds:
            with tempfile.TemporaryDirectory() as place:
                folder = Path(place)
                write_files(folder, kind)
                lines = table(take_turns(variants(folder, shape, precision), turns))
                told = comparison(folder, shape, precision, turns)
            cores = f"{threads} thread{'s' if threads > 1 else ''}"
            title = f"### {shape}, {kind}, {precision}, {cores}, {turns} turns"
            parts.append("\n".join([title, "", *lines, "", told]))
    return "\n\n".join(parts)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--shape", nargs="+", default=["minilm"], choices=sorted(SHAPES))
    parser.add_argument("--kind", nargs="+", default=list(LENGTHS), choices=list(LENGTHS))
    parser.add_argument("--precision", default="auto", choices=("auto", "fp32", "bf16"))
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--turns", type=int, default=40)
    parser.add_argument("--quick", action="store_true", help="a tiny encoder and few turns")
    parser.add_argument("--output", type=Path)
    args = parser.parse_args()
    shapes, turns = (["tiny"], 4) if args.quick else (args.shape, args.turns)
    text = report(shapes, args.kind, args.precision, args.threads, turns)
    print(text)
    if args.output is not None:
        args.output.write_text(text + "\n", encoding="utf-8")
