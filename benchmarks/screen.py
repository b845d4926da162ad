"""How well does `palm compare --screen` rank candidate helpers, beside trying each of them?

    python benchmarks/screen.py --model MINILM --data DATA --foreign TEXT --output FILE.jsonl --target slot

The target is ATIS's slots or intents with `--rows` rows of the first half of its training file; the
helpers' sentences are those of the second half, if they are of ATIS. The truth: each helper is drawn with
the target, one to one, for twice `--updates`; those of `--in_stages` also first the helper, then the target,
as many updates each. Rates and updates of the target alone are the best of `--rates` and `--alone_updates`
on dev rows with the seed `--sweep_seed`; helpers have these rates: they are tuned for the baseline, not for
them. Every way is then trained with every seed of `--seeds` and scored on test rows; all ways are paired by
seed, which draws the target's rows, too. `--foreign` is a text of another language.
With `--estimate SEED ...`, estimates by one run of all tasks follow, `--estimate_updates` long, and their
rank correlation with the truth. One JSON line a run; the same command goes on where it stopped. `--table`
only prints what is in the file.
"""

from __future__ import annotations

import json
import re
import statistics
import tempfile
import time
from argparse import Namespace
from collections.abc import Iterator
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
from arguments import add_training, new_parser, run_settings
from gain import (
    Task,
    atis,
    drawn,
    exchanged,
    labelled,
    lines_of,
    misplaced,
    mlm,
    relabelled,
    texts_of,
    without_roles,
    written,
)
from paired import corrected, mean_of

import palm
from palm.experiments.comparison.screen import estimates_during

METRICS = {"slot": "entity_f1", "intent": "accuracy"}
ALONE = "alone"
IN_STAGES = " in stages"
ESTIMATES = ("fall", "look_ahead", "cosine")


def coarse_intents(labels: list[str]) -> list[str]:
    """Is it about flights or not? Label 0 of ATIS is `flight`."""
    return [str(int(label != "0")) for label in labels]


def with_labels_of(file: Path, task: Task, folder: Path) -> Task:
    """The task with the labels that its file has."""
    place = lines_of(file)[0].rstrip("\n").split("\t").index("label")
    found = {tag for line in lines_of(file)[1] for tag in line.rstrip("\n").split("\t")[place].split()}
    labels = folder / f"{file.stem}.json"
    labels.write_text(json.dumps({tag: at for at, tag in enumerate(sorted(found))}), encoding="utf-8")
    return {**task, "train_file": str(file), "label_map": str(labels), "n_classes": len(found)}


def tasks_of(args: Namespace, seed: int, folder: Path) -> dict[str, Task]:
    """The target, which is the first, and the helpers with known worth."""
    data = args.data / "atis"
    other = {"slot": "intent", "intent": "slot"}[args.target]
    few, rest = drawn(Namespace(rows=args.rows, sample=seed), data / args.target / "train.tsv", folder)
    _, others = drawn(Namespace(rows=args.rows, sample=seed), data / other / "train.tsv", folder / other)
    folder.joinpath("foreign.tsv").write_text(
        "text_a\n" + "\n".join(foreign_rows(args.foreign)) + "\n", encoding="utf-8"
    )
    found = {args.target: atis(args, args.target, few), "same": atis(args, args.target, rest)}
    if args.target == "slot":
        coarse = relabelled(rest, folder / "coarse.tsv", without_roles)
        helpers = {"coarse": with_labels_of(coarse, found["same"], folder)}
    else:
        helpers = {"coarse": labelled(relabelled(rest, folder / "coarse.tsv", coarse_intents))}
    return found | {
        **helpers,
        "shuffled": shuffled(args, args.target, rest, folder / "shuffled.tsv"),
        other: atis(args, other, others),
        f"{other}_shuffled": shuffled(args, other, others, folder / f"{other}_shuffled.tsv"),
        "texts": mlm(texts_of(rest, folder / "texts.tsv")),
        "sst2": labelled(args.data / "sst2" / "train.tsv"),
        "foreign": mlm(folder / "foreign.tsv"),
    }


def shuffled(args: Namespace, name: str, file: Path, target: Path) -> Task:
    """The task with labels that say nothing: those of a row in another order, or of another row."""
    if name == "slot":
        return with_labels_of(relabelled(file, target, misplaced), atis(args, name, file), target.parent)
    return atis(args, name, relabelled(file, target, exchanged))


def foreign_rows(file: Path) -> list[str]:
    """Sentences of a text."""
    parts = re.split(r"[\n。!?]", file.read_text(encoding="utf-8"))
    return [part.strip().replace("\t", " ") for part in parts if len(part.strip()) > 10]


def settings_of(args: Namespace, tasks: dict[str, Task], folder: Path, **changes: Any) -> dict[str, Any]:
    return {
        "task_instance": list(tasks),
        "target_tag": [1] + [0] * (len(tasks) - 1),
        "mix_ratio": [1.0] * len(tasks),
        "tasks": tasks,
        **run_settings(args),
        "num_epochs": None,
        "freeze": args.freeze,
        "save_path": str(folder / "out"),
        **changes,
    }


def limits_of(rates: str, updates: int, seed: int) -> dict[str, Any]:
    rate, head_rate = map(float, rates.split("/"))
    own = {"learning_rate": rate, "head_learning_rate": head_rate}
    return own | {"max_steps": updates, "random_seed": seed}


def score(args: Namespace, way: str, rates: str, updates: int, seed: int, part: str) -> dict[str, Any]:
    """Train once, and score the last model on dev or test rows."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        tasks = tasks_of(args, seed, folder)
        helpers = [] if way == ALONE else [way.removesuffix(IN_STAGES)]
        tasks = {task: tasks[task] for task in (args.target, *helpers)}
        head, lines = lines_of(args.data / "atis" / args.target / f"{part}.tsv")
        file = written(folder / f"{part}.tsv", head, lines[: args.test_rows])
        tasks[args.target]["metrics"] = [METRICS[args.target]]
        limits = limits_of(rates, updates, seed)
        if way.endswith(IN_STAGES):
            limits |= {"max_steps": updates // 2, "stages": [{"tasks": helpers}, {"tasks": [args.target]}]}
        began = time.process_time()
        palm.Controller(settings_of(args, tasks, folder, **limits), argv=[]).train()
        seconds = time.process_time() - began
        model = palm.load_model(folder / "out" / args.target / "infer_model", precision=args.precision)
        return {"score": float(model.evaluate(file)[METRICS[args.target]]), "cpu": seconds}


def estimates(args: Namespace, rates: str, seed: int) -> Iterator[dict[str, Any]]:
    """Train all tasks once, and estimate what each helper is worth."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        tasks = tasks_of(args, seed, folder)
        tasks[args.target]["dev_file"] = str(args.data / "atis" / args.target / "dev.tsv")
        limits = limits_of(rates, args.estimate_updates, seed)
        began = time.process_time()
        training = palm.Controller(settings_of(args, tasks, folder, **limits), argv=[]).training()
        for found in estimates_during(training):
            about = {"way": found.helper, "rates": rates, "updates": args.estimate_updates, "seed": seed}
            about["part"] = "estimate"
            yield (
                about
                | {name: getattr(found, name) for name in ESTIMATES}
                | {"cpu": time.process_time() - began}
            )


def rank_correlation(one: list[float], other: list[float]) -> float:
    """Spearman's, of values without ties."""
    return float(np.corrcoef(np.argsort(np.argsort(one)), np.argsort(np.argsort(other)))[0, 1])


def runs_of(args: Namespace, done: list[dict[str, Any]]) -> Iterator[tuple[str, str, int, int, str]]:
    """Yield what tells a run from others; the best rate is known once the sweep is done."""
    with tempfile.TemporaryDirectory() as name:
        ways = args.helpers or list(tasks_of(args, 0, Path(name)))[1:]
    ways += [way + IN_STAGES for way in args.in_stages]
    for updates, rates in product(args.alone_updates or [2 * args.updates], args.rates):
        yield ALONE, rates, updates, args.sweep_seed, "dev"
    rates, updates = best_alone(done)
    for seed in args.seeds:
        yield ALONE, rates, updates, seed, "test"
        for way in ways:
            yield way, rates, 2 * args.updates, seed, "test"


def best_alone(done: list[dict[str, Any]]) -> tuple[str, int]:
    """Return rates and updates."""
    best = max((run for run in done if run["part"] == "dev"), key=lambda run: run["score"])
    return best["rates"], best["updates"]


def gains(done: list[dict[str, Any]]) -> dict[str, list[float]]:
    """Way -> its points above the target alone, for each seed."""
    by_way: dict[str, dict[int, float]] = {}
    for run in done:
        if run["part"] == "test":
            by_way.setdefault(run["way"], {})[run["seed"]] = 100 * run["score"]
    base = by_way[ALONE]
    return {way: [own[seed] - base[seed] for seed in own if seed in base] for way, own in by_way.items()}


def table(done: list[dict[str, Any]]) -> str:
    """The truth, the best helper first."""
    text = ["| helper | points beside alone | corrected | seeds | CPU s a run |", "|---|---|---|---|---|"]
    found = gains(done)
    most = max(len(values) for way, values in found.items() if way != ALONE)
    # Those of fewer seeds only show the order of helpers.
    intervals = corrected({way: own for way, own in found.items() if way != ALONE and len(own) == most})
    for way in sorted(found, key=lambda own: -statistics.mean(found[own])):
        seconds = statistics.mean(run["cpu"] for run in done if run["way"] == way and run["part"] == "test")
        shown = mean_of(found[way], "+")
        cells = [way, shown, intervals.get(way, ""), str(len(found[way])), f"{seconds:.0f}"]
        text.append(f"| {' | '.join(cells)} |")
    del found[ALONE]
    found = {way: values for way, values in found.items() if not way.endswith(IN_STAGES)}
    truth = [statistics.mean(values) for values in found.values()]
    for seed, updates in sorted({(r["seed"], r["updates"]) for r in done if r["part"] == "estimate"}):
        wanted = (seed, updates, "estimate")
        own = {run["way"]: run for run in done if (run["seed"], run["updates"], run["part"]) == wanted}
        ranked = {name: rank_correlation([own[way][name] for way in found], truth) for name in ESTIMATES}
        shown = ", ".join(f"{name} {value:+.2f}" for name, value in ranked.items())
        seconds = max(run["cpu"] for run in own.values())
        text.append(f"rank correlation of seed {seed} after {updates} updates: {shown} ({seconds:.0f} CPU s)")
    return "\n".join(text)


def main() -> None:
    parser = new_parser(__doc__)
    add_training(parser, batch_size=8, max_seq_len=64, precision="bf16")
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--foreign", type=Path, required=True)
    parser.add_argument("--output", type=Path, required=True)
    parser.add_argument("--target", choices=list(METRICS), default="slot")
    parser.add_argument("--rows", type=int, default=100)
    parser.add_argument("--test_rows", type=int, default=400, help="the first ones, also of dev rows")
    parser.add_argument("--updates", type=int, default=80)
    parser.add_argument("--alone_updates", type=int, nargs="*", help="twice --updates where absent")
    parser.add_argument("--helpers", nargs="*", help="all where absent")
    parser.add_argument("--in_stages", nargs="*", default=[], help="helpers")
    parser.add_argument(
        "--freeze", default="4", help="the setting; 4 layers that do not train make runs cheap"
    )
    parser.add_argument("--rates", nargs="+", default=["2e-4/2e-3"], help="of the encoder / the heads")
    parser.add_argument("--sweep_seed", type=int, default=0)
    parser.add_argument("--seeds", type=int, nargs="*", default=[1, 2, 3, 4, 5])
    parser.add_argument("--estimate", type=int, nargs="*", default=[])
    parser.add_argument("--estimate_updates", type=int, default=160)
    parser.add_argument("--table", action="store_true")
    args = parser.parse_args()
    done = [json.loads(line) for line in args.output.open(encoding="utf-8")] if args.output.exists() else []
    if not args.table:
        names = ("way", "rates", "updates", "seed", "part")
        known = {tuple(run[name] for name in names) for run in done}
        with args.output.open("a", encoding="utf-8") as file:
            for run in runs_of(args, done):
                if run not in known:
                    line = {**dict(zip(names, run, strict=True)), **score(args, *run)}
                    print(json.dumps(line), file=file, flush=True)
                    done.append(line)
            for seed in args.estimate:
                wanted = (args.estimate_updates, seed, "estimate")
                if not any((run["updates"], run["seed"], run["part"]) == wanted for run in done):
                    for line in estimates(args, best_alone(done)[0], seed):
                        print(json.dumps(line), file=file, flush=True)
                        done.append(line)
    print(table(done))


if __name__ == "__main__":
    main()
