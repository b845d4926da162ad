"""Several processes against one: the same numbers, and how fast. On the three tasks of demo 2.

    python benchmarks/several_devices.py equal     # losses, weights and predictions of 1, 2 and 4 processes
    python benchmarks/several_devices.py resume    # what one number of processes saved, another one ends
    python benchmarks/several_devices.py scaling   # examples a second

`equal` and `resume` run without dropout, whose draws differ between processes, in fp32, with 16 rows
a step on all processes together. `scaling` runs one process with one thread, one with two, and two
with one each, by turns, with 32 rows a step on all of them together.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping
from itertools import islice
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file
from torch import Tensor

from palm import Controller
from palm.distributed import is_first, num_ranks
from palm.engine.run.evaluation import model_of

ROOT = Path(__file__).resolve().parents[1]
DEMO = ROOT / "demos" / "demo2"
TASKS = ("mrqa", "mlm4mrqa", "match4mrqa")
COUNTS = (1, 2, 4)
ROWS = 16
MAIN_STEPS = 228  # of the main task in an epoch, with so many rows each
WARM_UP = 5  # steps that are not timed
UNFELT = re.compile(r"attention\.key\.bias$|@mrqa\.(paradigm\.)?out\.bias$")
"""What a softmax does not feel, because it is added to all of its inputs: the gradient is rounding only."""

SHAPES: dict[str, dict[str, int]] = {
    "small": {},  # that of the demo
    "minilm": {
        **{"hidden_size": 384, "num_hidden_layers": 6},
        **{"num_attention_heads": 12, "intermediate_size": 1536},
    },
}


def dropouts(rate: float) -> dict[str, float]:
    """All settings that are a rate of dropout, at this one."""
    return dict.fromkeys(("hidden_dropout_prob", "attention_probs_dropout_prob", "dropout_prob"), rate)


def run(options: argparse.Namespace) -> None:
    """One run; the program starts itself again where there are several processes."""
    settings = {
        "precision": "fp32",
        "num_epochs": 100,
        "warmup_proportion": 0.001,  # of that many epochs, 46 steps
        "batch_size": options.rows // options.processes,
        "num_devices": options.processes,
        "device": "cpu",
        "save_path": options.output,
        "overwrite": True,
        **SHAPES[options.shape],
        **dropouts(options.dropout),
    }
    training = Controller(DEMO / "config.yaml", task_dir="tasks", argv=words(settings)).training()
    losses, began = [], 0.0
    for step in islice(training.steps(), options.steps):
        losses.append(step.loss.item())
        if step.number == WARM_UP:
            began = time.perf_counter()
    seconds = time.perf_counter() - began
    if is_first():
        options.output.mkdir(parents=True, exist_ok=True)
        torch.save(training.model.state_dict(), options.output / "weights.pt")
    if options.dropout == 0:
        model = model_of(training, training.tasks[0])
        model.predict_file(ROOT / "data" / "mrqa" / "dev.json", options.output)
    if is_first():
        told = {"losses": losses, "examples_per_second": (len(losses) - WARM_UP) * options.rows / seconds}
        (options.output / "told.json").write_text(json.dumps({**told, "ranks": num_ranks()}), "utf-8")


def words(settings: Mapping[str, object]) -> list[str]:
    """Settings as a command line has them."""
    return [word for name, value in settings.items() for word in (f"--{name}", str(value))]


def started(folder: Path, processes: int, threads: int, **options: Any) -> dict[str, Any]:
    """What a run of its own tells."""
    command = [__file__, "run", *words({"processes": processes, "output": folder, **options})]
    ended(command, threads)
    told: dict[str, Any] = json.loads((folder / "told.json").read_text("utf-8"))
    assert told["ranks"] == processes
    return told


def ended(command: list[str], threads: int = 1) -> None:
    """Run a Python program to its end."""
    environment = {**os.environ, "OMP_NUM_THREADS": str(threads), "PYTHONPATH": str(ROOT)}
    subprocess.run([sys.executable, *command], env=environment, check=True, stdout=subprocess.DEVNULL)


def farthest(ours: Mapping[str, Tensor], theirs: Mapping[str, Tensor]) -> float:
    """The largest difference between two sets of weights."""
    assert ours.keys() == theirs.keys()
    names = [name for name in ours if not UNFELT.search(name)]
    return max(float((ours[name] - theirs[name]).abs().max()) for name in names)


def equal(options: argparse.Namespace) -> None:
    """Print by how much runs on several processes differ from the one on a single one."""
    with tempfile.TemporaryDirectory() as place:
        folders = {count: Path(place) / str(count) for count in COUNTS}
        sizes = {"steps": options.steps, "rows": ROWS}
        told = {count: started(folder, count, 1, **sizes) for count, folder in folders.items()}
        weights = {count: torch.load(folder / "weights.pt") for count, folder in folders.items()}
        answers = {
            count: json.loads((folder / "predictions.json").read_text("utf-8"))
            for count, folder in folders.items()
        }
    first, last = told[1]["losses"][0], told[1]["losses"][-1]
    print(f"{options.steps} steps of {ROWS} rows; the first loss is {first:.4f}, the last {last:.4f}\n")
    print("| processes | losses, largest difference | weights, largest difference | other answers |")
    print("|---|---|---|---|")
    for count in COUNTS[1:]:
        pairs = zip(told[1]["losses"], told[count]["losses"], strict=True)
        loss = max(abs(one - other) for one, other in pairs)
        weight = farthest(weights[1], weights[count])
        others = sum(answers[1][key] != answers[count][key] for key in answers[1])
        print(f"| {count} | {loss:.1e} | {weight:.1e} | {others} of {len(answers[1])} |")


def resume(options: argparse.Namespace) -> None:
    """Print by how much the models of interrupted runs differ from those of one that nobody interrupted."""
    with tempfile.TemporaryDirectory() as name:
        place, half = Path(name), options.steps // 2
        for count in COUNTS:
            trained(place / str(count), count, options.steps, save_every_n_steps=half)
        print(f"saved after {half} steps, resumed to about {options.steps}\n")
        print("| saved by | resumed by | weights, largest difference |\n|---|---|---|")
        for count in COUNTS[1:]:
            weights = apart(place / "1", place / str(count))
            print(f"| {count}, not interrupted | | {weights:.1e} |", flush=True)
        for saved in COUNTS:
            for count in set(COUNTS) - {saved}:
                folder = place / f"{saved}_{count}"
                checkpoint = place / str(saved) / f"step_{half}"
                trained(folder, count, options.steps, resume=checkpoint)
                print(f"| {saved} | {count} | {apart(place / '1', folder):.1e} |", flush=True)


def trained(save_path: Path, processes: int, steps: int, **settings: Any) -> None:
    """`palm train`, with all tasks as targets, so that each leaves a model."""
    common = {
        "task_dir": "tasks",
        "target_tag": "1,1,1",
        "precision": "fp32",
        "num_epochs": steps / 2 / MAIN_STEPS,  # the main task has half of the steps
        "batch_size": ROWS // processes,
        "num_devices": processes,
        "device": "cpu",
        "save_path": save_path,
        "overwrite": True,
        **dropouts(0.0),
    }
    ended(["-m", "palm", "train", str(DEMO / "config.yaml"), *words({**common, **settings})])


def apart(one: Path, other: Path) -> float:
    """The largest difference between the models that two runs left."""
    return max(farthest(saved_model(one / task), saved_model(other / task)) for task in TASKS)


def saved_model(folder: Path) -> dict[str, Tensor]:
    """The weights of the model in a task's folder."""
    weights = load_file(folder / "infer_model" / "model.safetensors")
    return {f"@{folder.name}.{name}": weight for name, weight in weights.items()}


def scaling(options: argparse.Namespace) -> None:
    """Print examples a second of each way, and the ratio to one thread, repetition by repetition."""
    ways = {"1 process, 1 thread": (1, 1), "1 process, 2 threads": (1, 2), "2 processes, 1 thread": (2, 1)}
    speeds: dict[str, list[float]] = {name: [] for name in ways}
    sizes = {"steps": options.steps, "rows": 32, "dropout": 0.1, "shape": options.shape}
    with tempfile.TemporaryDirectory() as place:
        for _ in range(options.repetitions):
            for name, (processes, threads) in ways.items():
                told = started(Path(place), processes, threads, **sizes)
                speeds[name].append(told["examples_per_second"])
    base = speeds[next(iter(ways))]
    print(f"{options.shape}, 32 rows a step, {options.steps} steps, {options.repetitions} repetitions\n")
    print("| | examples/s | times one thread (least–most) |\n|---|---|---|")
    for name, values in speeds.items():
        ratios = [value / one for value, one in zip(values, base, strict=True)]
        spread = f"{statistics.median(ratios):.2f} ({min(ratios):.2f}–{max(ratios):.2f})"
        print(f"| {name} | {statistics.median(values):.1f} | {spread} |")


WHAT: dict[str, Callable[[argparse.Namespace], None]] = {
    "equal": equal,
    "resume": resume,
    "scaling": scaling,
    "run": run,
}


def main() -> None:
    """Run what the command line asks for."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("what", choices=WHAT)
    parser.add_argument("--steps", type=int, default=200)
    parser.add_argument("--repetitions", type=int, default=5)
    parser.add_argument("--shape", choices=SHAPES, default="small")
    parser.add_argument("--processes", type=int, default=1, help=argparse.SUPPRESS)
    parser.add_argument("--rows", type=int, default=ROWS, help=argparse.SUPPRESS)
    parser.add_argument("--dropout", type=float, default=0.0, help=argparse.SUPPRESS)
    parser.add_argument("--output", type=Path, help=argparse.SUPPRESS)
    options = parser.parse_args()
    WHAT[options.what](options)


if __name__ == "__main__":
    main()
