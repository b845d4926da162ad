"""Write requests to an assistant as data for tagging and classification; every run writes the same bytes.

`tagging_data/grammar.txt` defines the requests: intents with patterns, parts of patterns, and slots, whose
words are labelled. `(a|b)` is a choice, `{name}` a part or slot, `{label:name}` a slot with another label.
"""

from __future__ import annotations

import argparse
import json
import random
import re
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple
from zlib import crc32

DATA = Path(__file__).resolve().parents[1] / "data"
GRAMMAR = Path(__file__).with_name("tagging_data") / "grammar.txt"
SIZES = {"train": 1000, "dev": 200}

NAMES = ("city", "artist", "song", "restaurant", "airline")
"""Slots whose values belong to only one split: values in dev do not occur in train."""
DEV_SHARE = 5
REFERENCE = re.compile(r"(\{(?:\w+:)?\w+\})")

Rules = dict[str, list[str]]


class Request(NamedTuple):
    """One sentence: its words, their labels, and its intent."""

    words: list[str]
    labels: list[str]
    intent: str


class Writer:
    """Generates the requests of one split.

    Args:
        rules: patterns by kind and name, as returned by `grammar`.
        split: `train` or `dev`.
    """

    def __init__(self, rules: dict[str, Rules], split: str) -> None:
        self.intents, self.slots = rules["intent"], rules["slot"]
        self.patterns = rules["part"] | rules["slot"]
        self.rng = random.Random(split)
        self.is_dev = split == "dev"

    def request(self, intent: str) -> Request:
        """Return a random request with this intent."""
        words: list[str] = []
        labels: list[str] = []
        for text in REFERENCE.split(self._drawn(self.intents[intent], labelled=True)):
            label, _, name = text.strip("{}").rpartition(":")
            found = (self._value(name) if REFERENCE.match(text) else text).split()
            words += found
            labels += _labels(label or name, len(found)) if REFERENCE.match(text) else ["O"] * len(found)
        return Request(words, labels, intent)

    def _value(self, slot: str) -> str:
        while True:
            value = self._drawn(self.patterns[slot], labelled=False)
            if slot not in NAMES or (crc32(value.encode()) % DEV_SHARE == 0) == self.is_dev:
                return value

    def _drawn(self, patterns: list[str], labelled: bool) -> str:
        """Return a random pattern with choices made and parts filled in; slots are kept if `labelled`."""
        text = self.rng.choice(patterns)
        while match := re.search(r"\(([^()]*)\)", text):
            text = text[: match.start()] + self.rng.choice(match[1].split("|")) + text[match.end() :]

        def filled(match: re.Match[str]) -> str:
            name = match[0].strip("{}")
            is_slot = ":" in name or name in self.slots
            return match[0] if is_slot and labelled else self._drawn(self.patterns[name], labelled)

        return REFERENCE.sub(filled, text)


def _labels(slot: str, length: int) -> list[str]:
    return [f"B-{slot}"] + [f"I-{slot}"] * (length - 1)


def grammar() -> dict[str, Rules]:
    """Read kind (`intent`, `part`, `slot`) -> name -> patterns."""
    rules: dict[str, Rules] = {"intent": {}, "part": {}, "slot": {}}
    patterns: list[str] = []
    for line in GRAMMAR.read_text(encoding="utf-8").splitlines():
        if line.startswith("  "):
            patterns.append(line.removeprefix("  "))
        elif line:
            kind, name = line.split()
            patterns = rules[kind][name] = []
    return rules


def requests(split: str, number: int) -> list[Request]:
    """Return different requests, equally many per intent, in random order."""
    writer = Writer(grammar(), split)
    found: dict[tuple[str, ...], Request] = {}
    while len(found) < number:
        for intent in writer.intents:
            request = writer.request(intent)
            found.setdefault(tuple(request.words), request)
    return writer.rng.sample(list(found.values())[:number], number)


def files() -> Iterator[tuple[str, str]]:
    """Yield the name and content of every data file."""
    splits = {split: requests(split, number) for split, number in SIZES.items()}
    labels = {label for request in splits["train"] for label in request.labels}
    yield "tagging/label_map.json", _numbered(sorted(labels, key=_by_slot))
    yield "intent/label_map.json", _numbered(list(grammar()["intent"]))
    for split, drawn in splits.items():
        yield (
            f"tagging/{split}.tsv",
            _table(
                "text_a\tlabel",
                (f"{' '.join(request.words)}\t{' '.join(request.labels)}" for request in drawn),
            ),
        )
        yield f"requests/{split}.jsonl", "\n".join([*_several(drawn), ""])
        yield (
            f"intent/{split}.tsv",
            _table("label\ttext_a", (f"{request.intent}\t{' '.join(request.words)}" for request in drawn)),
        )


def _several(drawn: list[Request]) -> Iterator[str]:
    """Yield every request, by itself or joined with the next one or two, with the list of intents."""
    for first in range(len(drawn)):
        asked = drawn[first : first + 1 + first % 3]
        labels = sorted({request.intent for request in asked})
        text = " and ".join(" ".join(request.words) for request in asked)
        yield json.dumps({"labels": labels, "text": text})


def _by_slot(label: str) -> tuple[str, str]:
    prefix, _, slot = label.partition("-")
    return slot, prefix


def _numbered(names: list[str]) -> str:
    return json.dumps({name: number for number, name in enumerate(names)}, indent=1) + "\n"


def _table(header: str, lines: Iterator[str]) -> str:
    return "\n".join([header, *lines]) + "\n"


def main() -> None:
    parser = argparse.ArgumentParser(description="Write the data of the tagging demo.")
    parser.add_argument("--output", type=Path, default=DATA, help="folder to write to (default: data/)")
    output = parser.parse_args().output
    for name, text in files():
        path = output / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8", newline="\n")
        print(f"{path}: {len(text.encode()):,} bytes")


if __name__ == "__main__":
    main()
