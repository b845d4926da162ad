"""Few rows alone, or together with a helper, for as many updates? One JSON line a score.

    python benchmarks/together.py --model MINILM --data SETS --tickets tickets.csv --output FILE.jsonl

SETS is made by `rivals_data.py`. Every way has the settings of `--effort`. `together` draws the tasks
of a case in turn, `each_step` trains all of them in every step; `alone` has as many updates as the target
there, and `longer` as many as all tasks together. A seed draws the target's rows and starts the training;
helpers have `--helper_rows` other rows of their set. In `tickets` and `reviews` the target is the column
`tags`, and the helpers are the other columns of the same rows; `reviews` (`data/reviews`) and `tickets small`
start from the encoder of `palm init --from`. Without `--head_learning_rate`, `effort` chooses that rate, too,
if there are several tasks. The last model is scored on test rows; in tables, on the rows that are not
drawn. The same command goes on where it stopped; `--table` only prints.
"""

from __future__ import annotations

import csv
import json
import random
import tempfile
import time
from argparse import Namespace
from itertools import product
from pathlib import Path
from typing import Any

import torch
from arguments import new_parser
from paired import corrected, mean_of

import palm

Row = dict[str, Any]

CASES = {
    "slots with entities": ("slots", "seq_label", "slots", "seq_label"),
    "intents with slots": ("intents", "cls", "slots", "seq_label"),
    "mixed with snips": ("mixed", "multi_label", "snips", "cls"),
    "tickets": ("tags", "multi_label", "", ""),
    "tickets small": ("tags", "multi_label", "", ""),
    "reviews": ("tags", "multi_label", "", ""),
}
"""Case -> set and kind of the target, and of its helper; tables have their own."""
TICKETS = {"text": "message", "category": "cls", "urgency": "ordinal", "tags": "multi_label"}
TABLES = {
    "tickets": TICKETS,
    "tickets small": TICKETS,
    "reviews": {"text": "review", "topic": "cls", "stars": "ordinal", "tags": "multi_label"},
}
SMALL = ("reviews", "tickets small")
METRIC = {"cls": "accuracy", "seq_label": "entity_f1", "multi_label": "micro_f1"}
WAYS = ("alone", "together", "each_step", "longer")
NEVER = 10**6


def read(path: Path) -> list[Row]:
    return [json.loads(line) for line in path.open(encoding="utf-8")]


def write(path: Path, rows: list[Row]) -> str:
    path.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    return str(path)


def task_of(kind: str, labels: list[Any], train: str) -> Row:
    """The settings of a task on rows with these labels."""
    names = sorted({name for label in labels for name in ([label] if isinstance(label, str) else label)})
    head = "cls" if kind == "ordinal" else kind
    own = {"label_map": {name: k for k, name in enumerate(names)}, "n_classes": len(names)}
    return {"reader": head, "paradigm": kind, "train_file": train, **own}


def without_roles(row: Row) -> Row:
    """`B-fromloc.city_name` as `B-city_name`."""
    tags = [f"{tag[:2]}{tag[2:].rpartition('.')[2]}" if tag != "O" else tag for tag in row["label"]]
    return {**row, "label": tags}


def of_sets(args: Namespace, case: str, seed: int, folder: Path) -> tuple[dict[str, Row], str]:
    """The target's task and the helper's, and the test file."""
    target, kind, helper, other = CASES[case]
    tasks = {}
    test = args.data / target / "test.jsonl"
    for name, its_set, its_kind in (("target", target, kind), ("helper", helper, other)):
        rows = read(args.data / its_set / "train.jsonl")
        # One order for sets of the same sentences, so the helper has other sentences than the target.
        random.Random(seed).shuffle(rows)
        if name == "helper" and case.endswith("entities"):
            rows = [without_roles(row) for row in rows]
        own = rows[: args.rows] if name == "target" else rows[args.rows :][: args.helper_rows]
        file = write(folder / f"{name}.jsonl", own)
        # Labels that only test rows have are labels, too, or the test file would be refused.
        labels = [row["label"] for row in (*rows, *(read(test) if name == "target" else []))]
        tasks[name] = task_of(its_kind, labels, file)
    return tasks, str(test)


def of_table(args: Namespace, case: str, seed: int, folder: Path) -> tuple[dict[str, Row], str]:
    """A task per column of a table, on the same rows, and a file of the other rows."""
    columns = dict(TABLES[case])
    text = columns.pop("text")
    with table_of(args, case).open(encoding="utf-8", newline="") as file:
        rows = [
            row for row in csv.DictReader(file) if row[text].strip() and all(row[each] for each in columns)
        ]
    random.Random(seed).shuffle(rows)
    for row in rows:
        row["tags"] = json.loads(row["tags"])
    parts = {"train": rows[: 2 * args.rows], "test": rows[2 * args.rows :]}
    files = {
        part: write(folder / f"{part}.jsonl", [{"text_a": row[text], **row} for row in own])
        for part, own in parts.items()
    }
    tasks = {}
    for name, kind in reversed(columns.items()):  # the target first
        key = "target" if name == "tags" else name
        tasks[key] = task_of(kind, [row[name] for row in rows], files["train"]) | {"columns": {"label": name}}
    return tasks, files["test"]


def table_of(args: Namespace, case: str) -> Path:
    """The file of a case's rows."""
    path: Path = args.reviews if case == "reviews" else args.tickets
    return path


def initial_encoder(folder: Path, table: Path) -> Row:
    """The encoder of a new project: its settings in `config.yaml`."""
    import yaml

    from palm.cli import main as palm_command

    palm_command(["init", str(folder / "project"), "--from", str(table)])
    config = yaml.safe_load((folder / "project" / "config.yaml").read_text("utf-8"))
    kept = ("backbone", "backbone_config_path", "pretrain_path", "vocab_path", "do_lower_case", "pooling")
    found = {name: config[name] for name in kept if name in config}
    return {
        n: str((folder / "project" / v).resolve()) if n.endswith("_path") else v for n, v in found.items()
    }


def run(args: Namespace, case: str, seed: int, way: str) -> Row:
    with tempfile.TemporaryDirectory() as name_of_folder:
        folder = Path(name_of_folder)
        tasks, test = (of_table if case in TABLES else of_sets)(args, case, seed, folder)
        kind = CASES[case][1]
        encoder: Row = {"backbone": "auto", "pretrain_path": str(args.model)}
        if case in SMALL:
            encoder = initial_encoder(folder, table_of(args, case))
        config: Row = {
            **encoder,
            "task_instance": "target",
            "tasks": {"target": tasks["target"] | {"dev_file": test}},
            "save_path": str(folder / "out"),
            "max_seq_len": args.max_seq_len,
            "random_seed": seed,
            "effort": args.effort,
            "eval_every_n_steps": NEVER,
            "quiet": True,
        }
        if way in ("together", "each_step"):
            others = [name for name in tasks if name != "target"]
            config |= {"tasks": config["tasks"] | {name: tasks[name] for name in others}}
            config |= {"task_instance": ["target", *others], "target_tag": [1] + [0] * len(others)}
        if way == "each_step":
            config |= {"tasks_per_step": "all"}
        if way == "longer":
            epochs = palm.Controller(config, argv=[]).run.settings.num_epochs
            config |= {"num_epochs": len(tasks) * epochs}
        if args.head_learning_rate is not None:
            config |= {"head_learning_rate": args.head_learning_rate}
        start = time.process_time()
        training = palm.Controller(config, argv=[]).training()
        for _ in training.steps():
            pass
        seconds = time.process_time() - start
        value = float(palm.Evaluator(training).evaluate().scores["target"][METRIC[kind]])
        return {"score": value, "updates": training.total_steps, "cpu": round(seconds, 1)}


def table(done: list[Row]) -> str:
    """Points of the target in each way, and of the others beside `longer`, over the seeds of all ways."""
    text = ["| case | seeds | " + " | ".join(WAYS) + " |", "|---" * (2 + len(WAYS)) + "|"]
    for case in CASES:
        points: dict[str, dict[int, float]] = {}
        for line in done:
            if line["case"] == case:
                points.setdefault(line["way"], {})[line["seed"]] = 100 * line["score"]
        seeds = sorted(set.intersection(*map(set, points.values()))) if points else []
        if not seeds:
            continue
        means = {way: mean_of([own[seed] for seed in seeds]) for way, own in points.items()}
        text.append(f"| {case} | {len(seeds)} | " + " | ".join(means.get(way, "") for way in WAYS) + " |")
        if longer := points.pop("longer", None):
            beside = {way: [own[seed] - longer[seed] for seed in seeds] for way, own in points.items()}
            cells = {
                way: f"{mean_of(own, '+')} ({corrected(beside).get(way, '')})" for way, own in beside.items()
            }
            text.append("| beside `longer` | | " + " | ".join(cells.get(way, "") for way in WAYS) + " |")
    return "\n".join(text)


def main() -> None:
    parser = new_parser(__doc__)
    for name in ("model", "data", "tickets", "reviews", "output"):
        parser.add_argument(f"--{name}", type=Path, required=True)
    parser.add_argument("--cases", nargs="+", default=list(CASES), choices=list(CASES))
    parser.add_argument("--seeds", type=int, nargs="*", default=[1, 2, 3])
    parser.add_argument("--ways", nargs="+", default=list(WAYS), choices=list(WAYS))
    parser.add_argument("--rows", type=int, default=100, help="of the target; tables have twice as many")
    parser.add_argument("--helper_rows", type=int, default=2000)
    parser.add_argument("--effort", default="normal", choices=("quick", "normal", "best"))
    parser.add_argument("--head_learning_rate", type=float, help="of all tasks; that of effort if not given")
    parser.add_argument("--max_seq_len", type=int, default=64)
    parser.add_argument("--table", action="store_true")
    args = parser.parse_args()
    done = read(args.output) if args.output.exists() else []
    if not args.table:
        torch.set_num_threads(1)
        known = {(line["case"], line["seed"], line["way"]) for line in done}
        for seed, case, way in product(args.seeds, args.cases, args.ways):
            if (case, seed, way) not in known:
                done.append({"case": case, "seed": seed, "way": way, **run(args, case, seed, way)})
                with args.output.open("a", encoding="utf-8") as file:
                    print(json.dumps(done[-1]), file=file)
    print(table(done))


if __name__ == "__main__":
    main()
