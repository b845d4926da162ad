"""What it costs to watch a run: the bar, the history and TensorBoard, against the bare steps.

    python benchmarks/watching.py [--steps 300]

Two equal runs take turns, step by step, in one process with one thread: one is trained by `run_training` with
everybody watching, the other only makes its steps. Times are of the processor, so that other programs count
little.
"""

from __future__ import annotations

import argparse
import contextlib
import io
import json
import logging
import sys
import tempfile
import time
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path
from statistics import median

import torch
from speed import machine
from speed_cases import SHAPES

import palm
from palm.engine.run.fit import Watch, run_training
from palm.engine.training.events import Event
from palm.engine.training.loop import Step, Training
from palm.engine.watching.trackers import trackers_of

DATA = Path(__file__).resolve().parents[1] / "data"
WARM_UP = 20
ROUNDS = 10


class Terminal(io.TextIOWrapper):
    """A stderr that says it is a terminal, and throws away what is written."""

    def isatty(self) -> bool:
        """So that the bar is shown."""
        return True


def training(folder: Path, shape: str, steps: int) -> Training:
    """Slots of short sentences, on an encoder of random weights."""
    sizes = folder / "backbone.json"
    sizes.write_text(json.dumps(SHAPES[shape].settings), encoding="utf-8")
    tagging = DATA / "tagging"
    task = {"reader": "seq_label", "paradigm": "seq_label", "train_file": str(tagging / "train.tsv")}
    rows = len((tagging / "train.tsv").read_text(encoding="utf-8").splitlines()) - 1
    settings = {
        "task_instance": "slot",
        "tasks": {"slot": task | {"label_map": str(tagging / "label_map.json")}},
        "backbone": "bert",
        "backbone_config_path": str(sizes),
        "vocab_path": str(DATA / "vocab.txt"),
        "max_seq_len": 64,
        "batch_size": 32,
        "num_epochs": steps * 32 / rows,
        "learning_rate": 1e-4,
        "save_path": str(folder / "out"),
        "use_data_cache": False,
        "device": "cpu",
    }
    return palm.Controller(settings, argv=[]).training()


class Turns:
    """The last observer: whenever the watched run has told a step to everybody, the bare run makes one."""

    def __init__(self, bare: Iterator[Step]) -> None:
        self.bare = bare
        self.watched_seconds: list[float] = []
        self.bare_seconds: list[float] = []
        self._since = time.process_time()

    def __call__(self, event: Event) -> None:
        if isinstance(event, Step):
            now = time.process_time()
            self.watched_seconds.append(now - self._since)
            next(self.bare, None)
            self._since = time.process_time()
            self.bare_seconds.append(self._since - now)


def measure(shape: str, steps: int) -> str:
    """A line of the table: milliseconds of a bare step, and what watching adds."""
    with tempfile.TemporaryDirectory() as one, tempfile.TemporaryDirectory() as other:
        watched, bare = (training(Path(folder), shape, steps + WARM_UP) for folder in (one, other))
        turns = Turns(bare.steps())
        names = ["tensorboard"] if find_spec("tensorboard") else []
        watch = Watch(
            every=5,
            progress="bar",
            folder=Path(one),
            observers=[*trackers_of(names, Path(one)), turns],
        )
        with Path("/dev/null").open("wb") as nothing, contextlib.redirect_stderr(Terminal(nothing)):
            run_training(watched, [], watch)
    pairs = list(zip(turns.watched_seconds, turns.bare_seconds, strict=True))[WARM_UP:]
    size = len(pairs) // ROUNDS
    parts = [pairs[k * size : (k + 1) * size] for k in range(ROUNDS)]
    ratios = [sum(w for w, _ in part) / sum(b for _, b in part) - 1 for part in parts]
    with_names = "bar, history" + "".join(f", {name}" for name in names)
    milliseconds = 1000 * sum(b for _, b in pairs) / len(pairs)
    return (
        f"| {shape} | {with_names} | {milliseconds:.2f} | {median(ratios):+.2%} | "
        f"{min(ratios):+.2%} to {max(ratios):+.2%} |"
    )


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--steps", type=int, default=300)
    parser.add_argument("--shapes", nargs="+", default=["tiny", "minilm"], choices=list(SHAPES))
    options = parser.parse_args()
    torch.set_num_threads(1)
    logging.disable(logging.INFO)
    print(machine())
    print(
        "| encoder | watched by | a bare step, CPU ms | added | in tenths of the run |\n|---|---|--:|--:|--:|"
    )
    for shape in options.shapes:
        print(measure(shape, options.steps), flush=True)


if __name__ == "__main__":
    sys.exit(main())
