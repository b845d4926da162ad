"""Write the six data sets of `rivals.py` from public files: train.jsonl, test.jsonl and labels.json each.

    python benchmarks/rivals_data.py --data DATA --snips SLOTGATED --mixed AGIF --output SETS

`--data` has the folders `atis` and `sst2` of the other benchmarks. SNIPS (7 intents, 39 kinds of slots) is
`data/snips` of a checkout of github.com/MiuLab/SlotGated-SLU; MixSNIPS (one to three of these intents in a
row, https://aclanthology.org/2020.findings-emnlp.163) is `data/MixSNIPS_clean` of github.com/LooperXX/AGIF:
its dev rows are drawn from for training, its test rows are scored. Test rows are 500 of each set, drawn once,
with the shares that labels have among all of its test rows. For `lora.py`, `snips_both` has intents and slots
of SNIPS in tables, all rows of each part, those to train in a drawn order.
"""

from __future__ import annotations

import csv
import json
import random
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from arguments import new_parser

Row = dict[str, Any]
TEST_ROWS = 500
LORA_PARTS = {"train": "train", "dev": "valid", "test": "test"}


def table(path: Path) -> list[dict[str, str]]:
    with path.open(encoding="utf-8", newline="") as file:
        return list(csv.DictReader(file, delimiter="\t", quoting=csv.QUOTE_NONE))


def texts(folder: Path, part: str) -> list[Row]:
    return [{"text_a": row["text_a"], "label": row["label"]} for row in table(folder / f"{part}.tsv")]


def slots(folder: Path, part: str) -> list[Row]:
    rows = table(folder / f"{part}.tsv")
    return [{"text_a": row["text_a"].split(), "label": row["label"].split()} for row in rows]


def snips(folder: Path, part: str, has_slots: bool) -> list[Row]:
    words, tags, intents = (
        (folder / "data/snips" / part / name).read_text("utf-8").splitlines()
        for name in ("seq.in", "seq.out", "label")
    )
    if has_slots:
        return [{"text_a": w.split(), "label": t.split()} for w, t in zip(words, tags, strict=True)]
    return [{"text_a": w, "label": i.strip()} for w, i in zip(words, intents, strict=True)]


def write_for_lora(folder: Path, output: Path) -> None:
    """Write `slot` and `intent` of the same rows: train.tsv, dev.tsv, test.tsv and label_map.json each."""
    for task, has_slots in (("slot", True), ("intent", False)):
        (output / task).mkdir(parents=True, exist_ok=True)
        parts = {name: snips(folder, own, has_slots) for name, own in LORA_PARTS.items()}
        random.Random(0).shuffle(parts["train"])
        labels = sorted({label for row in parts["train"] for label in each_label(row)})
        ids = {label: number for number, label in enumerate(labels)}
        (output / task / "label_map.json").write_text(json.dumps(ids))
        for part, rows in parts.items():
            lines = [
                f"{' '.join(row['text_a'])}\t{' '.join(row['label'])}"
                if has_slots
                else f"{' '.join(row['text_a'].split())}\t{ids[row['label']]}"
                for row in rows
            ]
            text = "\n".join(["text_a\tlabel", *lines, ""])
            (output / task / f"{part}.tsv").write_text(text, encoding="utf-8")


def mixed(folder: Path, part: str) -> list[Row]:
    file = folder / "data/MixSNIPS_clean" / {"train": "dev", "test": "test"}[part]
    rows = []
    for block in file.with_suffix(".txt").read_text("utf-8").strip().split("\n\n"):
        *lines, intents = block.splitlines()
        words = " ".join(line.split()[0] for line in lines)
        rows.append({"text_a": words, "label": sorted(intents.strip().split("#"))})
    return rows


def sets_of(data: Path, snips_of: Path, mixed_of: Path) -> Iterator[tuple[str, Callable[[str], list[Row]]]]:
    yield "intents", lambda part: texts(data / "atis/intent", part)
    yield "sst2", lambda part: texts(data / "sst2", part)
    yield "slots", lambda part: slots(data / "atis/slot", part)
    yield "snips", lambda part: snips(snips_of, part, has_slots=False)
    yield "snips_slots", lambda part: snips(snips_of, part, has_slots=True)
    yield "mixed", lambda part: mixed(mixed_of, part)


def each_label(row: Row) -> list[str]:
    return [row["label"]] if isinstance(row["label"], str) else row["label"]


def stratified(rows: list[Row], count: int) -> list[Row]:
    """Every n-th row of the rows in order of their labels (for slots: of their first label besides O)."""
    random.Random(0).shuffle(rows)
    rows.sort(key=lambda row: [label for label in each_label(row) if label != "O"][:3])
    return [rows[at * len(rows) // count] for at in range(min(count, len(rows)))]


def main() -> None:
    parser = new_parser(__doc__)
    for name in ("data", "snips", "mixed", "output"):
        parser.add_argument(f"--{name}", type=Path, required=True)
    args = parser.parse_args()
    for name, rows_of in sets_of(args.data, args.snips, args.mixed):
        folder = args.output / name
        folder.mkdir(parents=True, exist_ok=True)
        rows = {"train": rows_of("train"), "test": stratified(rows_of("test"), TEST_ROWS)}
        counts = Counter(label for row in rows["train"] for label in each_label(row))
        (folder / "labels.json").write_text(json.dumps({label: k for k, label in enumerate(sorted(counts))}))
        for part, own in rows.items():
            text = "".join(json.dumps(row) + "\n" for row in own)
            (folder / f"{part}.jsonl").write_text(text, encoding="utf-8")
        print(
            f"{name}: {len(rows['train'])} training rows, {len(rows['test'])} test rows, {len(counts)} labels"
        )
    write_for_lora(args.snips, args.output / "snips_both")


if __name__ == "__main__":
    main()
