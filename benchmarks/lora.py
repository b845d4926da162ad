"""Slots and intents of ATIS: each alone, together, and together with LoRA per task; one JSON line per run.

    python benchmarks/lora.py --model DIR --data atis --learning_rate 3e-4 --lora_rate 1e-2

`--data` has the folders `slot` and `intent`, each with train.tsv, dev.tsv, test.tsv and label_map.json; the
first `--rows` of train.tsv are trained on. `frozen` trains adapters and heads at `--lora_rate`, `trained` the
shared encoder as well, at `--learning_rate`. A line has entity F1 of slots and accuracy of intents on the
file `--score` after the last step, the bytes of the saved weights, and the seconds of CPU.
"""

from __future__ import annotations

import json
import tempfile
import time
from itertools import islice
from pathlib import Path
from typing import Any

from arguments import add_training, new_parser, run_settings

import palm

LORA = {"rank": 8, "alpha": 16, "targets": ["query", "value"]}

WAYS: dict[str, dict[str, Any]] = {
    "alone slot": {"task_instance": ["slot"]},
    "alone intent": {"task_instance": ["intent"]},
    "together": {},
    "frozen": {"lora": LORA, "freeze": "backbone"},
    "trained": {"lora": LORA},
}


def task_of(data: Path, task: str, folder: Path, rows: int) -> dict[str, Any]:
    """The settings of a task on the first rows of its data."""
    with (data / task / "train.tsv").open(encoding="utf-8") as file:
        (folder / f"{task}.tsv").write_text("".join(islice(file, rows + 1)), encoding="utf-8")
    labels = json.loads((data / task / "label_map.json").read_text(encoding="utf-8"))
    own: dict[str, Any] = {"train_file": str(folder / f"{task}.tsv"), "n_classes": len(labels)}
    if task == "intent":
        return {**own, "reader": "cls", "paradigm": "cls"}
    names = str(data / task / "label_map.json")
    return {**own, "reader": "seq_label", "paradigm": "seq_label", "label_map": names}


def run(args: Any, way: str, seed: int) -> dict[str, Any]:
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        tasks = {task: task_of(args.data, task, folder, args.rows) for task in ("slot", "intent")}
        settings = {**run_settings(args), "save_path": str(folder / "out"), "random_seed": seed}
        settings |= {"task_instance": list(tasks), "tasks": tasks, **WAYS[way]}
        settings["tasks"] = {task: tasks[task] for task in settings["task_instance"]}
        if "lora" in settings:
            settings |= {"learning_rate": args.lora_rate, "backbone_learning_rate": args.learning_rate}
        started = time.process_time()
        palm.Controller(settings, argv=[]).train()
        found: dict[str, Any] = {"way": way, "seed": seed, "cpu_seconds": time.process_time() - started}
        for task in settings["task_instance"]:
            saved = folder / "out" / task / "infer_model"
            file = args.data / task / f"{args.score}.tsv"
            scores = palm.load_model(saved, precision=args.precision).evaluate(file)
            found[task] = next(iter(scores.values()))
            for place in (saved, saved / "lora"):
                if place.is_dir():
                    size = sum(each.stat().st_size for each in place.glob("*.safetensors"))
                    found[f"{task} {place.name} bytes"] = size
    return found


def main() -> None:
    parser = new_parser(__doc__)
    add_training(parser, epochs=6, learning_rate=3e-4)
    parser.add_argument("--lora_rate", type=float, default=3e-3)
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--rows", type=int, default=600)
    parser.add_argument("--score", choices=("dev", "test"), default="test")
    parser.add_argument("--ways", nargs="+", choices=list(WAYS), default=list(WAYS))
    parser.add_argument("--seeds", type=int, nargs="+", default=[1, 2, 3])
    args = parser.parse_args()
    for seed in args.seeds:
        for way in args.ways:
            print(json.dumps(run(args, way, seed)), flush=True)


if __name__ == "__main__":
    main()
