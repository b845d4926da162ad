"""Examples of any reader: their texts, their labels, their places."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Iterator, Sequence
from itertools import repeat
from pathlib import Path
from typing import Any, Literal

from palm.core.errors import PalmError
from palm.reader import Reader
from palm.reader.match import RankedExample
from palm.reader.text.squad import SquadQuestion

Role = Literal["train", "dev", "pred"]

MOST_LETTERS = 100
"""Of a row that is shown."""


def examples_of(reader: Reader, path: Path, role: Role) -> Iterator[Any]:
    """The examples of a file, as the run reads it in this role."""
    return reader.read_true(path) if role == "dev" else reader.read(path, with_targets=role == "train")


def texts_of(example: Any) -> list[str]:
    """The texts by which examples are the same; of a class that is not known, all but its label and place."""
    if isinstance(example, SquadQuestion):
        return [example.question, example.context]
    if isinstance(example, RankedExample):
        return [example.right.text_a, example.right.text_b or "", example.wrong.text_b or ""]
    if isinstance(words := getattr(example, "words", None), list):
        return [" ".join(words)]
    if isinstance(getattr(example, "text_a", None), str):
        texts = (example.text_a, getattr(example, "text_b", None))
        return [text for text in texts if text is not None]
    if dataclasses.is_dataclass(example):
        skipped = ("label", "labels", "place")
        return [
            str(getattr(example, each.name))
            for each in dataclasses.fields(example)
            if each.name not in skipped
        ]
    return [str(example)]


def truths_of(reader: Reader, chunk: Sequence[Any], role: Role) -> Iterable[dict[str, Any]]:
    """The truths of each example; empty for data without labels, or if the reader has none."""
    if role == "pred" or (chunk and isinstance(chunk[0], RankedExample)):
        return repeat({}, len(chunk))
    try:
        truths = list(reader.truths(chunk))
    except PalmError:  # a user's reader may have none
        return repeat({}, len(chunk))
    return [{name: value for name, value in truth.items() if name != "id"} for truth in truths]


def place_of(example: Any) -> str:
    """`file:line` without folders, or the question's id."""
    whole = getattr(example, "right", example)
    if isinstance(whole, SquadQuestion):
        return f"question {whole.id!r}"
    name, colon, line = str(getattr(whole, "place", "")).rpartition(":")
    return f"{Path(name).name}{colon}{line}"


def shown(example: Any) -> str:
    """An example in one short line, with its place."""
    text = " | ".join(" ".join(each.split()) for each in texts_of(example))
    return f"{place_of(example)} {shortened(text)}".strip()


def shortened(text: str) -> str:
    """A text that is not too long to be shown."""
    return text if len(text) <= MOST_LETTERS else text[:MOST_LETTERS] + "…"
