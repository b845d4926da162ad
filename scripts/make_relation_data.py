"""Write the data of the demo of spans and relations: `python scripts/make_relation_data.py`.

The requests are like those of `make_starter_data.py`, but there are more of them. The same command writes the
same bytes on every machine.
"""

from __future__ import annotations

import argparse
import random
from pathlib import Path

from make_starter_data import SPANS, annotated, write_json, write_lines

DATA = Path(__file__).resolve().parents[1] / "data"


def main() -> None:
    """Write all files."""
    parser = argparse.ArgumentParser(description="Write the data of the demo of spans and relations.")
    parser.add_argument("--output", type=Path, default=DATA, help="folder to write to (default: data/)")
    folder = parser.parse_args().output / "relations"
    rows = annotated(random.Random(3), 600)
    write_lines(folder / "train.jsonl", rows[:500])
    write_lines(folder / "dev.jsonl", rows[500:])
    spans = sorted({span["label"] for row in rows for span in row["spans"]})
    relations = sorted({each.split()[1] for part in SPANS.values() for each in part})
    words = sorted({word for row in rows for word in row["text_a"]})
    vocabulary = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *words]
    (folder / "vocab.txt").write_text("\n".join(vocabulary) + "\n", encoding="utf-8")
    for name, labels in (("span_label_map", spans), ("label_map", relations)):
        write_json(folder / f"{name}.json", {label: number for number, label in enumerate(labels)})


if __name__ == "__main__":
    main()
