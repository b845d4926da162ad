"""Does a related task help one that has few labels? Alone, together, in stages, and all in every step.

    python benchmarks/gain.py --model MINILM --data DATA --output DIR --cases slot-entities slot-misplaced

Each case is one run of `palm.compare`, whose table and verdicts it prints. The target has `--rows` labelled
rows; a helper is trained on other rows than those that the target's are drawn from. In stages, the helper
comes first, then the target alone, with as many target steps as in every other variant. The model after the
last step is scored on the test rows, since there are no dev rows to spare. `--data` holds the folders `atis`,
`sst2`, `rte` and `palm_demo`. Killed, the same command goes on. Which rows are drawn is one choice
(`--sample`), and the intervals of a comparison do not count it.
"""

from __future__ import annotations

import json
import random
import re
from argparse import Namespace
from collections.abc import Callable, Set
from pathlib import Path
from typing import Any

from arguments import add_training, new_parser, run_settings

import palm

Task = dict[str, Any]


def lines_of(file: Path) -> tuple[str, list[str]]:
    head, *lines = file.read_text(encoding="utf-8").splitlines(keepends=True)
    return head, lines


def written(file: Path, head: str, lines: list[str]) -> Path:
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(head + "".join(lines), encoding="utf-8")
    return file


def drawn(args: Namespace, train: Path, folder: Path) -> tuple[Path, Path]:
    """`--rows` rows of the first half of a file, and all of its second half."""
    head, lines = lines_of(train)
    half = len(lines) // 2
    few = random.Random(args.sample).sample(lines[:half], args.rows)
    return written(folder / "few.tsv", head, few), written(folder / "rest.tsv", head, lines[half:])


def texts_of(file: Path, target: Path) -> Path:
    """The texts of a file without its labels."""
    head, lines = lines_of(file)
    place = head.rstrip("\n").split("\t").index("text_a")
    return written(target, "text_a\n", [line.rstrip("\n").split("\t")[place] + "\n" for line in lines])


def relabelled(file: Path, target: Path, change: Callable[[list[str]], list[str]]) -> Path:
    """The same rows with other labels; `change` takes those of all rows and gives as many."""
    head, lines = lines_of(file)
    place = head.rstrip("\n").split("\t").index("label")
    rows = [line.rstrip("\n").split("\t") for line in lines]
    for row, label in zip(rows, change([row[place] for row in rows]), strict=True):
        row[place] = label
    return written(target, head, ["\t".join(row) + "\n" for row in rows])


def exchanged(labels: list[str]) -> list[str]:
    """Each row has the label of another one."""
    return random.Random(0).sample(labels, len(labels))


def without_roles(labels: list[str]) -> list[str]:
    """`B-fromloc.city_name` as `B-city_name`: entities as a data set for another purpose would name them."""
    return [" ".join(re.sub(r"-\w+\.", "-", tag) for tag in row.split()) for row in labels]


def misplaced(labels: list[str]) -> list[str]:
    """The tags of each row, without their roles, in a random order."""
    draw = random.Random(0)
    return [" ".join(draw.sample(tags, len(tags))) for tags in map(str.split, without_roles(labels))]


def atis(args: Namespace, name: str, file: Path) -> Task:
    """A task on rows of ATIS."""
    labels = args.data / "atis" / name / "label_map.json"
    kind = "seq_label" if name == "slot" else "cls"
    number = len(json.loads(labels.read_text(encoding="utf-8")))
    task = {"reader": kind, "paradigm": kind, "n_classes": number, "train_file": str(file)}
    return task | ({"label_map": str(labels)} if name == "slot" else {})


def mlm(file: Path) -> Task:
    return {"reader": "mlm", "paradigm": "mlm", "train_file": str(file)}


def labelled(file: Path, reader: str = "cls") -> Task:
    return {"reader": reader, "paradigm": reader, "n_classes": 2, "train_file": str(file)}


def of_atis(target: str, helper: str) -> Callable[[Namespace, Path], dict[str, Task]]:
    """A case on ATIS: few rows of one half of the sentences, all of the other half for the helper."""

    def tasks(args: Namespace, folder: Path) -> dict[str, Task]:
        data = args.data / "atis"
        few, _ = drawn(args, data / target / "train.tsv", folder / target)
        other = {"slot": "intent", "intent": "slot"}[target] if helper != "mlm" else target
        _, rest = drawn(args, data / other / "train.tsv", folder / other)
        if helper == "mlm":
            return {target: atis(args, target, few), "mlm": mlm(texts_of(rest, folder / "texts.tsv"))}
        if helper == "exchanged":
            rest = relabelled(rest, folder / "exchanged.tsv", exchanged)
        return {target: atis(args, target, few), other: atis(args, other, rest)}

    return tasks


def of_entities(change: Callable[[list[str]], list[str]]) -> Callable[[Namespace, Path], dict[str, Task]]:
    """Slots, with entities of the other half of the sentences for the helper, which has another label map."""

    def tasks(args: Namespace, folder: Path) -> dict[str, Task]:
        few, rest = drawn(args, args.data / "atis" / "slot" / "train.tsv", folder)
        entities = relabelled(rest, folder / "entities.tsv", change)
        found = {tag for line in lines_of(entities)[1] for tag in line.rstrip("\n").split("\t")[1].split()}
        labels = folder / "entities.json"
        labels.write_text(
            json.dumps({tag: number for number, tag in enumerate(sorted(found))}), encoding="utf-8"
        )
        task = {**atis(args, "slot", entities), "label_map": str(labels), "n_classes": len(found)}
        return {"slot": atis(args, "slot", few), "entities": task}

    return tasks


def of_sst2(helper: str) -> Callable[[Namespace, Path], dict[str, Task]]:
    """A case on SST-2: few rows of one half; texts of the other half, or RTE, for the helper."""

    def tasks(args: Namespace, folder: Path) -> dict[str, Task]:
        few, rest = drawn(args, args.data / "sst2" / "train.tsv", folder)
        if helper == "mlm":
            return {"sst2": labelled(few), "mlm": mlm(texts_of(rest, folder / "texts.tsv"))}
        rte_rows = labelled(args.data / "rte" / "train.tsv", "match")
        return {"sst2": labelled(few), "rte": rte_rows | {"max_seq_len": 128}}

    return tasks


def rte(args: Namespace, folder: Path) -> dict[str, Task]:
    """RTE's rows with SST-2's as the helper."""
    few, _ = drawn(args, args.data / "rte" / "train.tsv", folder)
    long = {"max_seq_len": 128}
    return {"rte": labelled(few, "match") | long, "sst2": labelled(args.data / "sst2" / "train.tsv")}


def palm_demo(args: Namespace, folder: Path) -> dict[str, Task]:
    """PaddlePALM's own example, on the questions of its training file that its dev file does not have."""
    data = args.data / "palm_demo"
    test = _around_answers(data / "mrqa" / "dev.json", folder / "dev.json", frozenset())
    train = _around_answers(data / "mrqa" / "train.json", folder / "train.json", test)
    assert train.isdisjoint(test)
    alike = {"max_seq_len": 256, "batch_size": 4}
    mrc = {"reader": "mrc", "paradigm": "mrc", "train_file": str(folder / "train.json"), "doc_stride": 128}
    texts = data / "match4mrqa" / "train.tsv", data / "mlm4mrqa" / "train.tsv"
    return {
        "mrqa": {**mrc, **alike, "max_query_len": 48, "max_answer_len": 20},
        "match": {**labelled(texts[0], "match"), **alike},
        "mlm": {**mlm(texts[1]), **alike},
    }


def _around_answers(source: Path, target: Path, without: Set[str]) -> Set[str]:
    """Questions with 800 letters around their first answer, but for some; returns which they are."""
    found, paragraphs = set[str](), []
    articles = json.loads(source.read_text(encoding="utf-8"))["data"]
    for paragraph in (each for article in articles for each in article["paragraphs"]):
        for qa in paragraph["qas"]:
            question, answer = str(qa["question"]).strip().lower(), qa["answers"][0]
            if question in without:
                continue
            found.add(question)
            start = max(0, answer["answer_start"] - 400)
            near = {**answer, "answer_start": answer["answer_start"] - start}
            context = paragraph["context"][start : start + 800]
            paragraphs.append({"context": context, "qas": [{**qa, "answers": [near]}]})
    target.parent.mkdir(parents=True, exist_ok=True)
    target.write_text(json.dumps({"data": [{"paragraphs": paragraphs}]}), encoding="utf-8")
    return found


SLOT, INTENT, SST2 = "atis/slot/test.tsv", "atis/intent/test.tsv", "sst2/test.tsv"

CASES: dict[str, tuple[str, Callable[[Namespace, Path], dict[str, Task]], str]] = {
    "slot-intent": ("slots, helped by intents of other sentences", of_atis("slot", "intent"), SLOT),
    "slot-mlm": ("slots, helped by other sentences without labels", of_atis("slot", "mlm"), SLOT),
    "slot-exchanged": ("slots; control: intents of other rows", of_atis("slot", "exchanged"), SLOT),
    "slot-entities": ("slots, helped by entities without roles", of_entities(without_roles), SLOT),
    "slot-misplaced": ("slots; control: entities in a random order", of_entities(misplaced), SLOT),
    "intent-slot": ("intents, helped by slots of other sentences", of_atis("intent", "slot"), INTENT),
    "intent-mlm": ("intents, helped by sentences without labels", of_atis("intent", "mlm"), INTENT),
    "intent-exchanged": ("intents; control: slots of other rows", of_atis("intent", "exchanged"), INTENT),
    "sst2-mlm": ("SST-2, helped by sentences without labels", of_sst2("mlm"), SST2),
    "sst2-rte": ("SST-2, helped by RTE", of_sst2("rte"), SST2),
    "rte-sst2": ("RTE, helped by SST-2", rte, "rte/val.tsv"),
    "palm_demo": ("MRC, helped by match and mlm", palm_demo, ""),
}
"""Case -> what it is, its tasks with the target first, its test file, where it is not made with them."""


def run(args: Namespace, case: str) -> None:
    _, tasks_of, test = CASES[case]
    folder = args.output.resolve() / f"{case}-{args.rows}-{args.sample}"
    tasks = tasks_of(args, folder / "data")
    target, *helpers = tasks
    for name in helpers:
        tasks[name] = {"batch_size": args.helper_batch_size, **tasks[name]}
    stages = [
        {"name": "helper", "tasks": helpers, "num_epochs": args.helper_epochs},
        {"name": "target", "tasks": [target], "num_epochs": args.epochs},
    ]
    config = {
        "task_instance": list(tasks),
        "target_tag": [1] + [0] * len(helpers),
        "mix_ratio": [1] + [args.helper_ratio] * len(helpers),
        **run_settings(args),
        "save_path": str(folder / "out"),
        "tasks": tasks,
        "stages": stages,
    }
    del config["batch_size"]
    tasks[target] = {"batch_size": args.batch_size, **tasks[target]}
    found = palm.compare(
        config,
        seeds=args.seeds,
        test={target: args.data / test if test else folder / "data" / "dev.json"},
        model="last",
        workers=args.workers,
        output=folder / "compare",
        also={"each_step": {"tasks_per_step": "all"}} if args.each_step else None,
    )
    print(f"\n{case}, {args.rows} rows: {CASES[case][0]}\n{found}", flush=True)


def main() -> None:
    parser = new_parser(__doc__)
    add_training(parser, 40.0, batch_size=16, learning_rate=1e-4, max_seq_len=64, precision="bf16")
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--output", type=Path, required=True, help="the folder of all runs")
    parser.add_argument("--cases", nargs="+", choices=list(CASES), default=list(CASES))
    parser.add_argument("--rows", type=int, default=100, help="labelled rows of the target")
    parser.add_argument("--sample", type=int, default=0, help="which ones")
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--helper_epochs", type=float, default=3, help="of the helper's rows, in stages")
    parser.add_argument("--helper_ratio", type=float, default=1.0, help="its steps, per target step")
    parser.add_argument("--each_step", action="store_true", help="also all tasks in every step")
    parser.add_argument("--helper_batch_size", type=int, default=32)
    parser.add_argument("--workers", type=int)
    args = parser.parse_args()
    args.data = args.data.resolve()
    for case in args.cases:
        run(args, case)


if __name__ == "__main__":
    main()
