"""Write the demos' data and vocabulary, about invented places and people; every run writes the same bytes."""

from __future__ import annotations

import argparse
import random
from collections.abc import Callable, Iterator
from pathlib import Path

from demo_data import tasks
from demo_data.passages import Writer
from demo_data.topics import topics
from demo_data.vocabulary import vocabulary

DATA = Path(__file__).resolve().parents[1] / "data"

Maker = Callable[[Writer, int], str]

FILES: dict[str, tuple[Maker, int, int]] = {
    "mrqa/{}.json": (tasks.reading, 520, 60),
    "match4mrqa/{}.tsv": (tasks.matching, 2000, 300),
    "mlm4mrqa/{}.tsv": (tasks.masking, 1200, 160),
    "cls4mrqa/{}.tsv": (tasks.classifying, 1600, 300),
}
"""File name -> its writer, and the numbers of articles or rows in train and dev."""


def files(seed: int, scale: int) -> Iterator[tuple[str, str]]:
    """Yield the name and content of every data file.

    Args:
        seed: another seed invents other people and places.
        scale: factor of the size of the train files.
    """
    for name, (make, num_train, num_dev) in FILES.items():
        for split, num_rows in (("train", num_train * scale), ("dev", num_dev)):
            yield name.format(split), make(writer(seed, name, split), num_rows)


def writer(seed: int, name: str, split: str) -> Writer:
    """Return the writer of one file; the same arguments result in the same file."""
    return Writer(topics(), random.Random(f"{seed} {name} {split}"), split)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--output", type=Path, default=DATA, help="folder to write to (default: data/)")
    parser.add_argument("--seed", type=int, default=0, help="another seed invents other people and places")
    parser.add_argument("--scale", type=int, default=1, help="factor of the size of the train files")
    arguments = parser.parse_args()
    vocab = "".join(f"{entry}\n" for entry in vocabulary(topics()))
    written = [*files(arguments.seed, arguments.scale), ("vocab.txt", vocab)]
    for name, text in written:
        path = arguments.output / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8", newline="\n")
        print(f"{path}: {len(text.encode()):,} bytes")


if __name__ == "__main__":
    main()
