"""Small files for the tests of the readers, and the recorded ones with their literal `[SEP]` taken out."""

from __future__ import annotations

import bz2
import csv
import gzip
import json
import lzma
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from palm.reader import Reader, Rows

SPECIAL = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
WORDS = [*",.?!'-()", "the", "a", "old", "new", "red", "green", "boat", "door"]
WORDS += ["has", "is", "what", "who", "anna", "bert", "in", "near", "of"]
CHINESE = list("中国的首都是北京在哪里人口")
LETTERS = [*"abcdefghijklmnopqrstuvwxyz0123456789"]

# The original kept a literal "[SEP]" in a text as the special token; for palm it is text. So that its
# recordings can be compared, the files get a word of the same length instead, and so do the recordings.
STAND_IN = "house"
LITERAL_SEP = re.compile(r"(?<!\S)\[SEP\](?!\S)")


CONTEXT = "Anna has a red boat. The boat is old, near the green door."


def write_vocabulary(folder: Path) -> Path:
    """A vocabulary of some words, Chinese characters, letters and their continuations."""
    path = folder / "vocab.txt"
    pieces = [f"##{letter}" for letter in LETTERS]
    path.write_text("\n".join(SPECIAL + WORDS + CHINESE + [x for x in LETTERS if x != "a"] + pieces), "utf-8")
    return path


def write_text(folder: Path, name: str, content: str) -> Path:
    """A file with exactly these characters."""
    path = folder / name
    path.write_bytes(content.encode("utf-8"))
    return path


def squad(*paragraphs: tuple[str, list[dict[str, Any]]]) -> dict[str, Any]:
    """A data set of one article per paragraph."""
    articles = [{"paragraphs": [{"context": context, "qas": qas}]} for context, qas in paragraphs]
    return {"version": "1.0", "data": articles}


def write_squad(folder: Path, *paragraphs: tuple[str, list[dict[str, Any]]]) -> Path:
    """The same as a file."""
    return write_text(folder, "squad.json", json.dumps(squad(*paragraphs), ensure_ascii=False))


def asked(name: str, question: str, *answers: tuple[str, int]) -> dict[str, Any]:
    """A question of a SQuAD file."""
    listed = [{"text": text, "answer_start": start} for text, start in answers]
    return {"id": name, "question": question, "answers": listed}


def rng_of_row(row: int) -> np.random.Generator:
    """A `draw` for `Reader.collate`."""
    return np.random.default_rng(row)


def encoded(reader: Reader, path: Path, with_targets: bool) -> Rows:
    """A file's rows."""
    return reader.encode(list(reader.read(path, with_targets)), with_targets)


def without_literal_sep(path: Path, folder: Path) -> Path:
    """A copy of a recorded data file with `STAND_IN` for every literal `[SEP]`."""
    text = path.read_text(encoding="utf-8")
    if path.suffix == ".json":
        data = json.loads(text)
        for article in data["data"]:
            for paragraph in article["paragraphs"]:
                paragraph["context"] = LITERAL_SEP.sub(STAND_IN, paragraph["context"])
        text = json.dumps(data)
    else:
        text = LITERAL_SEP.sub(STAND_IN, text)
    return write_text(folder, path.name, text)


PACKED = {".gz": gzip.compress, ".bz2": bz2.compress, ".xz": lzma.compress}


def write_rows(path: Path, rows: Sequence[dict[str, Any]]) -> Path:
    """Write rows in the format of a file's name."""
    kind = next(each for each in path.suffixes if each in (".tsv", ".csv", ".jsonl", ".parquet", ".arrow"))
    if kind == ".parquet":
        pyarrow = pytest.importorskip("pyarrow")
        pytest.importorskip("pyarrow.parquet").write_table(
            pyarrow.Table.from_pylist(list(rows)), path, row_group_size=4
        )
    elif kind == ".arrow":
        table = pytest.importorskip("pyarrow").Table.from_pylist(list(rows))
        with pytest.importorskip("pyarrow.ipc").new_stream(str(path), table.schema) as stream:
            stream.write_table(table)
    elif kind == ".jsonl":
        path.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    elif kind == ".tsv":
        lines = ["\t".join(rows[0]), *("\t".join(row.values()) for row in rows)]
        path.write_text("\n".join(lines) + "\n", encoding="utf-8")
    else:
        with path.open("w", encoding="utf-8", newline="") as file:
            writer = csv.DictWriter(file, list(rows[0]))
            writer.writeheader()
            writer.writerows(rows)
    if path.suffix in PACKED:
        path.write_bytes(PACKED[path.suffix](path.read_bytes()))
    return path
