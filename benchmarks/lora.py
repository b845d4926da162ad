"""Slots and intents of ATIS or SNIPS: each alone, together, in stages, and together with LoRA per task.

    python benchmarks/lora.py --model DIR --data atis --output FILE.jsonl

`--data` has the folders `slot` and `intent`, each with train.tsv, dev.tsv, test.tsv and label_map.json; the
first `--rows` of train.tsv are trained on. `longer` is `alone` with twice the epochs, as many updates as the
other ways have together. In `slot after intent` the task goes on from the model of `alone intent` of that
seed, which is kept beside `--output`. `frozen` trains adapters and heads, `trained` the shared encoder,
too; embeddings always rest. Each way has the pair of `--rates` or `--lora_rates` (the encoder's / that of
heads and adapters) that is best on dev rows after `--tune_epochs`, with the seed `--tune_seed`, by the mean
of its tasks, or the only pair that is given; `longer`, and a task after another, have the pair of the task
alone. A line has entity F1 of slots and accuracy of intents on the test rows after the last step, for each
sentence whether all is right, the bytes of the saved weights, and the seconds of CPU. Differences are to the
better of `alone` and `longer`.
The same command goes on where it stopped; `--table` only prints what is in the file.
"""

from __future__ import annotations

import csv
import json
import statistics
import tempfile
import time
from argparse import Namespace
from collections.abc import Iterator
from itertools import islice
from pathlib import Path
from typing import Any

from arguments import add_training, new_parser, run_settings
from paired import corrected, mean_of

import palm

TASKS = ("slot", "intent")
AFTER = " after "
LORA = {"rank": 8, "alpha": 16, "targets": ["query", "value"]}
Run = tuple[str, str, float, int, str]
"""Way, rates, epochs, seed and the scored part."""

WAYS: dict[str, tuple[tuple[str, ...], dict[str, Any]]] = {
    "alone slot": (("slot",), {}),
    "alone intent": (("intent",), {}),
    "longer slot": (("slot",), {}),
    "longer intent": (("intent",), {}),
    "together": (TASKS, {}),
    "slot after intent": (("slot",), {}),
    "intent after slot": (("intent",), {}),
    "frozen": (TASKS, {"lora": LORA, "freeze": "backbone"}),
    "trained": (TASKS, {"lora": LORA}),
}
"""Way -> its tasks and settings."""
TUNED_ALONE = {way: f"alone {names[0]}" for way, (names, _) in WAYS.items() if len(names) == 1}
"""Way of one task -> the way whose rates it has."""


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


def train(args: Namespace, run: Run, folder: Path, start: Path | None) -> None:
    """Train one way, and save its models under `folder`."""
    way, rates, epochs, seed, _ = run
    names, changes = WAYS[way]
    backbone_rate, rate = map(float, rates.split("/"))
    settings = {**run_settings(args), "save_path": str(folder), "random_seed": seed, "num_epochs": epochs}
    settings |= {"learning_rate": rate, "backbone_learning_rate": backbone_rate, "overwrite": True}
    settings |= {"freeze": "embeddings", **changes}
    if start is not None:
        del settings["pretrain_path"]
        settings["start_from"] = str(start)
    with tempfile.TemporaryDirectory() as rows:
        tasks = {task: task_of(args.data, task, Path(rows), args.rows) for task in names}
        palm.Controller(settings | {"task_instance": list(names), "tasks": tasks}, argv=[]).train()


def kept_folder(args: Namespace, way: str, seed: int) -> Path:
    return Path(args.output.resolve().parent / "models" / f"{way}-{seed}".replace(" ", "-"))


def right_rows(model: Any, task: str, file: Path, folder: Path) -> list[bool]:
    """Return for each sentence whether all that the task says of it is right."""
    with file.open(encoding="utf-8", newline="") as lines:
        true = [row["label"] for row in csv.DictReader(lines, delimiter="\t", quoting=csv.QUOTE_NONE)]
    records = list(model.predict_file(file, folder / f"predicted-{task}"))
    if task == "slot":
        return [record["labels"] == label.split() for record, label in zip(records, true, strict=True)]
    return [record["label"] == int(label) for record, label in zip(records, true, strict=True)]


def score(args: Namespace, run: Run) -> dict[str, Any]:
    """Train once, and score the last models."""
    way, _, _, seed, part = run
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        out = kept_folder(args, way, seed) if part == "test" and way.startswith("alone") else folder / "out"
        start = None
        if AFTER in way:
            before = way.split(AFTER)[1]
            start = kept_folder(args, f"alone {before}", seed) / before / "infer_model"
        started = time.process_time()
        train(args, run, out, start)
        found: dict[str, Any] = {"cpu": round(time.process_time() - started, 1)}
        for task in WAYS[way][0]:
            saved = out / task / "infer_model"
            model = palm.load_model(saved, precision=args.precision)
            file = args.data / task / f"{part}.tsv"
            found[task] = next(iter(model.evaluate(file).values()))
            found[f"{task} right"] = "".join(str(int(each)) for each in right_rows(model, task, file, folder))
            for place in (saved, saved / "lora"):
                if place.is_dir():
                    size = sum(each.stat().st_size for each in place.glob("*.safetensors"))
                    found[f"{task} {place.name} bytes"] = size
        return found


def runs_of(args: Namespace, done: list[dict[str, Any]]) -> Iterator[Run]:
    """Yield what tells a run from others; the best rates of a way are known once its sweep is done."""
    for way in dict.fromkeys(TUNED_ALONE.get(way, way) for way in args.ways):
        pairs = rates_of(args, way)
        for rates in pairs if len(pairs) > 1 else ():
            yield way, rates, args.tune_epochs, args.tune_seed, "dev"
    for seed in args.seeds:
        for way in args.ways:
            epochs = args.epochs * (2 if way.startswith("longer") else 1)
            yield way, best_rates(args, done, way), epochs, seed, "test"


def rates_of(args: Namespace, way: str) -> list[str]:
    """Return the pairs of rates that a way tries."""
    pairs: list[str] = args.lora_rates if "lora" in WAYS[way][1] else args.rates
    return pairs


def best_rates(args: Namespace, done: list[dict[str, Any]], way: str) -> str:
    pairs = rates_of(args, way)
    if len(pairs) == 1:
        return pairs[0]
    tuned = TUNED_ALONE.get(way, way)
    tried = [run for run in done if (run["way"], run["part"]) == (tuned, "dev")]
    return str(max(tried, key=lambda run: sum(run[task] for task in WAYS[tuned][0]))["rates"])


def group_of(way: str) -> str:
    """Return what ways of one task each are called together."""
    return "in stages" if AFTER in way else way.split(" ")[0]


def points_of(done: list[dict[str, Any]]) -> dict[str, dict[str, dict[int, float]]]:
    """Return group of ways -> slot, intent and sentence -> seed -> points."""
    right: dict[tuple[str, int], dict[str, str]] = {}
    found: dict[str, dict[str, dict[int, float]]] = {}
    for run in (run for run in done if run["part"] == "test"):
        group, seed = group_of(run["way"]), run["seed"]
        own = found.setdefault(group, {name: {} for name in (*TASKS, "sentence")})
        for task in WAYS[run["way"]][0]:
            own[task][seed] = 100 * run[task]
            right.setdefault((group, seed), {})[task] = run[f"{task} right"]
    for (group, seed), rows in right.items():
        if rows.keys() == set(TASKS):
            pairs = list(zip(*rows.values(), strict=True))
            found[group]["sentence"][seed] = 100 * sum(pair == ("1", "1") for pair in pairs) / len(pairs)
    return found


def table(done: list[dict[str, Any]]) -> str:
    """Return means of every way, and differences to the better way alone; whole sentences have all right."""
    found = points_of(done)
    text = ["| | slots, F1 | intents | sentences | seeds | CPU s | rates |", "|---" * 7 + "|"]
    differences: dict[str, list[float]] = {}
    for group, scores in found.items():
        runs = [run for run in done if run["part"] == "test" and group_of(run["way"]) == group]
        cells = [mean_of(list(own.values())) if own else "" for own in scores.values()]
        seconds = sum(run["cpu"] for run in runs) / len({run["seed"] for run in runs})
        rates = ", ".join(dict.fromkeys(run["rates"] for run in runs))
        seeds = str(len({run["seed"] for run in runs}))
        text.append("| " + " | ".join([group, *cells, seeds, f"{seconds:.0f}", rates]) + " |")
        for name, own in scores.items():
            alone = [found[way][name] for way in ("alone", "longer") if way in found and found[way][name]]
            base = max(alone, key=lambda scores: statistics.mean(scores.values()), default={})
            paired = [own[seed] - base[seed] for seed in own if seed in base]
            if own is not base and paired:
                differences[f"{group}, {name}"] = paired
    text += ["", "| beside the better way alone | points | corrected |", "|---|---|---|"]
    intervals = corrected(differences)
    for name, values in differences.items():
        text.append(f"| {name} | {mean_of(values, '+')} | {intervals.get(name, '')} |")
    return "\n".join(text)


def main() -> None:
    parser = new_parser(__doc__)
    add_training(parser, epochs=3, max_seq_len=64)
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--output", type=Path, required=True)
    parser.add_argument("--rows", type=int, default=4478)
    parser.add_argument("--rates", nargs="+", default=["2e-4/2e-3", "4e-4/2e-3"])
    parser.add_argument("--lora_rates", nargs="+", default=["2e-4/3e-3", "2e-4/1e-2"])
    parser.add_argument("--tune_epochs", type=int, default=2)
    parser.add_argument("--tune_seed", type=int, default=0)
    parser.add_argument("--ways", nargs="+", choices=list(WAYS), default=list(WAYS))
    parser.add_argument("--seeds", type=int, nargs="*", default=[1, 2, 3])
    parser.add_argument("--table", action="store_true")
    args = parser.parse_args()
    done = [json.loads(line) for line in args.output.open(encoding="utf-8")] if args.output.exists() else []
    if not args.table:
        names = ("way", "rates", "epochs", "seed", "part")
        known = {tuple(run[name] for name in names) for run in done}
        with args.output.open("a", encoding="utf-8") as file:
            for run in runs_of(args, done):
                if run not in known:
                    line = {**dict(zip(names, run, strict=True)), **score(args, run)}
                    print(json.dumps(line), file=file, flush=True)
                    done.append(line)
    print(table(done))


if __name__ == "__main__":
    main()
