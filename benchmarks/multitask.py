"""Train tasks together from one configuration, with dev evaluation and best models; one JSON line per run.

    python benchmarks/multitask.py --model DIR --data DATA --set atis --mixing mix_ratio round_robin
    python benchmarks/multitask.py --model DIR --data DATA --set palm_demo --max_seq_len 256 --batch_size 8

`--data` holds the folders of the sets: `atis` (slot, intent), `rte` and `sst2`, `palm_demo` (mrqa,
mlm4mrqa, match4mrqa), each with train.tsv and dev.tsv, and test.tsv (`val.tsv` for rte) where there is one.
A line has, per task, the dev scores of every evaluation, and the test scores of its model after the last
step and of the best one (chosen on dev). Where palm_demo has no dev file, every fifth row is held out.
"""

from __future__ import annotations

import argparse
import json
import tempfile
import time
from pathlib import Path
from typing import Any

from arguments import add_training, new_parser, run_settings

import palm
from palm.report.history import read_history

Task = dict[str, Any]


def atis(data: Path, _spare: Path) -> dict[str, Task]:
    slot, intent = data / "atis" / "slot", data / "atis" / "intent"
    labels = json.loads((slot / "label_map.json").read_text(encoding="utf-8"))
    intents = json.loads((intent / "label_map.json").read_text(encoding="utf-8"))
    return {
        "slot": {
            **files(slot, "test.tsv"),
            "reader": "seq_label",
            "paradigm": "seq_label",
            "n_classes": len(labels),
            "label_map": str(slot / "label_map.json"),
        },
        "intent": {
            **files(intent, "test.tsv"),
            "reader": "cls",
            "paradigm": "cls",
            "n_classes": len(intents),
        },
    }


def rte_sst2(data: Path, _spare: Path) -> dict[str, Task]:
    return {
        "rte": {**files(data / "rte", "val.tsv"), "reader": "match", "paradigm": "match"},
        "sst2": {**files(data / "sst2", "test.tsv"), "reader": "cls", "paradigm": "cls", "n_classes": 2},
    }


def palm_demo(data: Path, spare: Path) -> dict[str, Task]:
    folder = data / "palm_demo"
    return {
        "mrqa": {
            "train_file": str(folder / "mrqa" / "train.json"),
            "dev_file": str(folder / "mrqa" / "dev.json"),
            "reader": "mrc",
            "paradigm": "mrc",
            "max_query_len": 64,
            "doc_stride": 128,
            "max_answer_len": 30,
        },
        "mlm4mrqa": {
            **held_out(folder / "mlm4mrqa" / "train.tsv", spare / "mlm"),
            "reader": "mlm",
            "paradigm": "mlm",
        },
        "match4mrqa": {
            **held_out(folder / "match4mrqa" / "train.tsv", spare / "match"),
            "reader": "match",
            "paradigm": "match",
        },
    }


def files(folder: Path, test: str) -> Task:
    """The files of a task; `test` is not a setting, `run` takes it out."""
    return {
        "train_file": str(folder / "train.tsv"),
        "dev_file": str(folder / "dev.tsv"),
        "test": str(folder / test),
    }


def held_out(path: Path, spare: Path) -> Task:
    """Every fifth row to evaluate on, the others to train on, for a file that has no dev set."""
    spare.mkdir()
    head, *rows = path.read_text(encoding="utf-8").splitlines(keepends=True)
    parts = {"dev": rows[::5], "train": [row for number, row in enumerate(rows) if number % 5]}
    for name, chosen in parts.items():
        (spare / f"{name}.tsv").write_text(head + "".join(chosen), encoding="utf-8")
    return {"train_file": str(spare / "train.tsv"), "dev_file": str(spare / "dev.tsv")}


SETS = {"atis": (atis, [1, 1]), "rte_sst2": (rte_sst2, [1, 1]), "palm_demo": (palm_demo, [1, 0, 0])}
"""Name -> its tasks, and which of them are targets."""


def config_of(
    args: argparse.Namespace, mixing: str, seed: int, tasks: dict[str, Task], tags: list[int], save_path: Path
) -> dict[str, Any]:
    return {
        "task_instance": list(tasks),
        "target_tag": tags,
        "tasks": tasks,
        "mixing": mixing,
        **run_settings(args),
        "save_path": str(save_path),
        "overwrite": True,
        "random_seed": seed,
        **({"mixing_temperature": 2} if mixing == "temperature" else {}),
    }


def run(args: argparse.Namespace, mixing: str, seed: int) -> dict[str, Any]:
    make, targets = SETS[args.set]
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        tasks = make(args.data.resolve(), folder)
        tags = [tag for task, tag in zip(tasks, targets, strict=True) if task in (args.tasks or tasks)]
        tasks = {task: settings for task, settings in tasks.items() if task in (args.tasks or tasks)}
        tests = {task: Path(settings.pop("test")) for task, settings in tasks.items() if "test" in settings}
        controller = palm.Controller(config_of(args, mixing, seed, tasks, tags, folder / "out"), argv=[])
        started = time.process_time()
        controller.train()
        figures: dict[str, Any] = {"cpu_seconds": round(time.process_time() - started)}
        history = read_history(folder / "out").evaluations
        for task in tasks:
            figures[task] = {"dev": [evaluation.scores[task] for evaluation in history]}
            for model in ("infer_model", "best_model") if task in tests else ():
                saved = palm.load_model(folder / "out" / task / model, precision=args.precision)
                figures[task][f"{model} on test"] = saved.evaluate(tests[task])
    return {"set": args.set, "mixing": mixing, "precision": args.precision, "seed": seed, **figures}


def main() -> None:
    parser = new_parser(__doc__)
    add_training(parser, epochs=3.0)
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--set", choices=list(SETS), required=True)
    parser.add_argument("--tasks", nargs="+", help="only these tasks of the set")
    parser.add_argument("--mixing", nargs="+", default=["mix_ratio"])
    parser.add_argument("--seeds", type=int, nargs="+", default=[1, 2, 3])
    args = parser.parse_args()
    for mixing in args.mixing:
        for seed in args.seeds:
            print(json.dumps(run(args, mixing, seed)), flush=True)


if __name__ == "__main__":
    main()
