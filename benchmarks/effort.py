"""How good is `effort` beside a sweep of rates and lengths, and beside Hugging Face's defaults?

    python benchmarks/effort.py --model MINILM --data DATA --output FILE.jsonl

Six cases, one task each, on rows drawn from its training file; a seed draws the rows and starts the
training, so that all ways are paired by seed. First a sweep as a user makes one: every rate with every
number of updates on the seeds of `--sweep_seeds`, each scored on dev rows; the case's best is the cell
with the highest mean. Then, on other seeds (`--seeds`), that cell, `effort` quick, normal and best, and
the defaults of Hugging Face's `Trainer`, all scored on test rows. The last model is scored; with
`--best`, the run evaluates on dev rows, and its best model is scored, too. `--data` holds the folders
`atis`, `sst2` and `rte`. Two cases are made from ATIS: `pairs` (match: do two requests have the same
intent?) and `questions` (mrc: "what is the fromloc city name ?", answered by a slot of the request). One
JSON line a run; the same command goes on where it stopped. `--table` only prints what is in the file.
"""

from __future__ import annotations

import json
import random
import statistics
import tempfile
from argparse import Namespace
from collections.abc import Iterator
from itertools import product
from pathlib import Path
from typing import Any, NamedTuple

from arguments import add_training, new_parser, run_settings
from paired import mean_of

import palm


class Case(NamedTuple):
    """A task, its files, its metric, the number of rows that are drawn, and the number of the metric."""

    folder: str
    files: dict[str, str]
    task: dict[str, Any]
    metric: str
    rows: int
    score: str = ""


TSV = {"train": "train.tsv", "dev": "dev.tsv", "test": "test.tsv"}
MRC = {"reader": "mrc", "paradigm": "mrc", "max_query_len": 16, "doc_stride": 32, "max_answer_len": 10}
CASES = {
    "slots": Case("atis/slot", TSV, {"reader": "seq_label", "paradigm": "seq_label"}, "entity_f1", 50),
    "intents": Case(
        "atis/intent", TSV, {"reader": "cls", "paradigm": "cls", "n_classes": 22}, "accuracy", 100
    ),
    "sst2": Case("sst2", TSV, {"reader": "cls", "paradigm": "cls", "n_classes": 2}, "accuracy", 400),
    "rte": Case("rte", TSV | {"test": "val.tsv"}, {"reader": "match", "paradigm": "match"}, "accuracy", 2127),
    "pairs": Case("pairs", TSV, {"reader": "match", "paradigm": "match"}, "accuracy", 400),
    "questions": Case("questions", {name: f"{name}.json" for name in TSV}, MRC, "squad", 400, "f1"),
}
RATES = (1e-4, 2e-4, 4e-4, 8e-4)
UPDATES = (100, 300, 600)
EFFORTS = ("quick", "normal", "best")
HUGGING_FACE = {
    "learning_rate": 5e-5,
    "batch_size": 8,
    "num_epochs": 3,
    "weight_decay": 0.0,
    "warmup_proportion": 0.0,
}
CHOSEN = ("learning_rate", "batch_size", "num_epochs", "warmup_proportion")


def requests(data: Path, part: str) -> list[tuple[str, list[str], list[str]]]:
    """Return the requests of ATIS: intent, words, labels of words."""
    intents, slots = (
        (data / f"atis/{kind}/{part}.tsv").read_text("utf-8").splitlines()[1:] for kind in ("intent", "slot")
    )
    found = []
    for intent, slot in zip(intents, slots, strict=True):
        text, labels = slot.split("\t")
        found.append((intent.split("\t")[0], text.split(), labels.split()))
    return found


def write_pairs(data: Path, part: str, target: Path) -> None:
    """Write as many pairs as there are requests, half of them with one intent."""
    draw = random.Random(part)
    rows = requests(data, part)
    lines = ["label\ttext_a\ttext_b"]
    for index, (intent, words, _) in enumerate(rows):
        same = index % 2
        others = [r for r in draw.sample(rows, len(rows)) if (r[0] == intent) == bool(same) and r[1] != words]
        if others:
            lines.append(f"{same}\t{' '.join(words)}\t{' '.join(others[0][1])}")
    target.write_text("\n".join(lines) + "\n", encoding="utf-8")


def write_questions(data: Path, part: str, target: Path) -> None:
    """Write a question for one slot of each request, a slot that the request has once."""
    draw = random.Random(part)
    paragraphs: list[dict[str, Any]] = []
    for _, words, labels in requests(data, part):
        starts = [at for at, label in enumerate(labels) if label.startswith("B-")]
        names = [labels[at][2:] for at in starts]
        once = [at for at, name in zip(starts, names, strict=True) if names.count(name) == 1]
        if once:
            start = draw.choice(once)
            end = start + 1
            while end < len(labels) and labels[end] == "I-" + labels[start][2:]:
                end += 1
            answer = {
                "text": " ".join(words[start:end]),
                "answer_start": len(" ".join([*words[:start], ""])),
            }
            name = labels[start][2:].replace("_", " ").replace(".", " ")
            asked = {
                "id": f"{part}{len(paragraphs)}",
                "question": f"what is the {name} ?",
                "answers": [answer],
            }
            paragraphs.append({"context": " ".join(words), "qas": [asked]})
    squad = {"version": "1.1", "data": [{"title": part, "paragraphs": paragraphs}]}
    target.write_text(json.dumps(squad), encoding="utf-8")


def file_of(args: Namespace, case: Case, part: str, run: Path) -> Path:
    """Return the path of a case's rows, made where they are not in `--data`."""
    if case.folder not in ("pairs", "questions"):
        return Path(args.data / case.folder / case.files[part])
    target = run / case.files[part]
    (write_pairs if case.folder == "pairs" else write_questions)(args.data, part, target)
    return target


def few_rows(train: Path, rows: int, seed: int, target: Path) -> Path:
    """Write some rows of a training file, drawn by the seed."""
    draw = random.Random(seed)
    if train.suffix == ".json":
        squad = json.loads(train.read_text("utf-8"))
        paragraphs = squad["data"][0]["paragraphs"]
        squad["data"][0]["paragraphs"] = draw.sample(paragraphs, min(rows, len(paragraphs)))
        target.write_text(json.dumps(squad), encoding="utf-8")
        return target
    head, *lines = train.read_text(encoding="utf-8").splitlines(keepends=True)
    target.write_text(head + "".join(draw.sample(lines, min(rows, len(lines)))), encoding="utf-8")
    return target


def settings_of(args: Namespace, way: str) -> dict[str, Any]:
    """Return the settings of a way: `RATE/UPDATES`, an effort, or `hugging_face`."""
    settings = run_settings(args)
    if way in EFFORTS:
        return {name: value for name, value in settings.items() if name not in CHOSEN} | {"effort": way}
    if way == "hugging_face":
        return settings | HUGGING_FACE
    rate, updates = way.split("/")
    return settings | {"learning_rate": float(rate), "num_epochs": None, "max_steps": int(updates)}


def score(args: Namespace, name: str, way: str, seed: int, part: str) -> dict[str, Any]:
    """Train once, and score the last model on dev or test rows."""
    case = CASES[name]
    task = dict(case.task)
    if name == "slots":
        labels = args.data / case.folder / "label_map.json"
        task |= {"label_map": str(labels), "n_classes": len(json.loads(labels.read_text("utf-8")))}
    with tempfile.TemporaryDirectory() as folder:
        run = Path(folder)
        train = few_rows(
            file_of(args, case, "train", run),
            args.rows or case.rows,
            seed,
            run / f"few{case.files['train'][-5:]}",
        )
        scored = file_of(args, case, part, run)
        evaluated = file_of(args, case, "dev", run) if args.best else scored
        config = {
            "task_instance": "task",
            "tasks": {"task": {"train_file": str(train), "dev_file": str(evaluated), **task}},
            **settings_of(args, way),
            "save_path": f"{folder}/out",
            "random_seed": seed,
            "metrics": [case.metric],
        }
        if args.best:
            palm.Controller(config, argv=[]).train()
            models = {"score": "infer_model", "best": "best_model"}
            return {
                name: scored_model(run / "out/task" / model, scored, case) for name, model in models.items()
            }
        training = palm.Controller(config, argv=[]).training()
        for _ in training.steps():
            pass
        value = float(palm.Evaluator(training).evaluate().scores["task"][case.score or case.metric])
        return {"score": value, "updates": training.total_steps}


def scored_model(saved: Path, file: Path, case: Case) -> float:
    return float(palm.load_model(saved).evaluate(file, [case.metric])[case.score or case.metric])


def runs_of(args: Namespace, done: list[dict[str, Any]]) -> Iterator[tuple[str, str, int, str]]:
    """Yield case, way, seed and part of every run; the sweep's best is known once the sweep is done."""
    cells = [f"{rate:g}/{updates}" for rate, updates in product(args.rates, args.updates)]
    for name in args.cases:
        for seed, way in product(args.sweep_seeds, cells):
            yield name, way, seed, "dev"
        for seed in args.seeds:
            for way in args.ways or (best_cell(done, name), *EFFORTS, "hugging_face"):
                yield name, way, seed, "test"


def best_cell(done: list[dict[str, Any]], name: str) -> str:
    cells: dict[str, list[float]] = {}
    for run in done:
        if run["case"] == name and run["part"] == "dev":
            cells.setdefault(run["way"], []).append(run["score"])
    return max(cells, key=lambda way: statistics.mean(cells[way]))


def tables(done: list[dict[str, Any]]) -> str:
    """Means in points: of the sweep on dev rows, and of all ways on test rows beside the sweep's best."""
    cases = [name for name in CASES if any(run["case"] == name for run in done)]
    cells = sorted({run["way"] for run in done if run["part"] == "dev"}, key=_cell)
    text = ["| sweep, dev | " + " | ".join(cells) + " |", "|---" * (1 + len(cells)) + "|"]
    for name in cases:
        means = [points(done, name, way, "dev") for way in cells]
        text.append(
            f"| {name} | "
            + " | ".join(f"{statistics.mean(m.values()):.1f}" if m else "" for m in means)
            + " |"
        )
    ways = (*EFFORTS, "hugging_face")
    text += ["", "| test | the sweep's best | | " + " | ".join(ways) + " |", "|---" * (3 + len(ways)) + "|"]
    for name in cases:
        best = best_cell(done, name)
        base = points(done, name, best, "test")
        differences = []
        for way in ways:
            pairs = points(done, name, way, "test")
            differences.append(mean_of([pairs[seed] - base[seed] for seed in pairs if seed in base]))
        text.append(
            f"| {name} | {best} | {mean_of(list(base.values()))}, {len(base)} seeds | "
            + " | ".join(differences)
            + " |"
        )
    return "\n".join(text)


def best_models(done: list[dict[str, Any]], cases: list[str]) -> str:
    """Scores on test rows of the last and of the best model, by case, way and seed."""
    lines = ["| case | way | seed | last | best by dev rows |", "|---|---|---|---|---|"]
    for run in done:
        if run["case"] in cases and "best" in run:
            lines.append("| {case} | {way} | {seed} | {score:.4f} | {best:.4f} |".format_map(run))
    return "\n".join(lines)


def _cell(way: str) -> tuple[float, int]:
    rate, updates = way.split("/")
    return float(rate), int(updates)


def points(done: list[dict[str, Any]], name: str, way: str, part: str) -> dict[int, float]:
    """Return seed -> score in points."""
    wanted = (name, way, part)
    scale = 1 if CASES[name].score == "f1" else 100  # that of SQuAD is in percent
    return {r["seed"]: scale * r["score"] for r in done if (r["case"], r["way"], r["part"]) == wanted}


def main() -> None:
    parser = new_parser(__doc__)
    add_training(parser, batch_size=16, max_seq_len=64)
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--output", type=Path, required=True)
    parser.add_argument("--cases", nargs="+", default=list(CASES), choices=list(CASES))
    parser.add_argument("--rows", type=int, help="in place of each case's number; at most all are drawn")
    parser.add_argument("--rates", type=float, nargs="+", default=RATES)
    parser.add_argument("--updates", type=int, nargs="+", default=UPDATES)
    parser.add_argument("--sweep_seeds", type=int, nargs="*", default=[1, 2])
    parser.add_argument("--seeds", type=int, nargs="*", default=[3, 4, 5, 6, 7])
    parser.add_argument("--ways", nargs="+", choices=EFFORTS, help="only these on test rows")
    parser.add_argument("--best", action="store_true", help="also score the best model by dev rows")
    parser.add_argument("--table", action="store_true")
    args = parser.parse_args()
    done = [json.loads(line) for line in args.output.open(encoding="utf-8")] if args.output.exists() else []
    if not args.table:
        known = {(run["case"], run["way"], run["seed"], run["part"]) for run in done}
        with args.output.open("a", encoding="utf-8") as file:
            for run in runs_of(args, done):
                if run not in known:
                    line = {
                        **dict(zip(("case", "way", "seed", "part"), run, strict=True)),
                        **score(args, *run),
                    }
                    print(json.dumps(line), file=file, flush=True)
                    done.append(line)
    print(best_models(done, args.cases) if args.best else tables(done))


if __name__ == "__main__":
    main()
