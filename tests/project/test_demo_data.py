"""The demos' data: written by a script, in PALM's formats, and honest (dev asks about the unknown)."""

from __future__ import annotations

import csv
import json
import runpy
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from tokenizers import BertWordPieceTokenizer

ROOT = Path(__file__).resolve().parents[2]
DATA = ROOT / "data"
TASKS = ("mrqa", "match4mrqa", "mlm4mrqa", "cls4mrqa")


def articles(split: str) -> list[dict[str, Any]]:
    squad: dict[str, Any] = json.loads((DATA / "mrqa" / f"{split}.json").read_text(encoding="utf-8"))
    data: list[dict[str, Any]] = squad["data"]
    return data


def paragraphs(split: str) -> Iterator[dict[str, Any]]:
    return (paragraph for article in articles(split) for paragraph in article["paragraphs"])


def rows(task: str, split: str) -> list[dict[str, str]]:
    with (DATA / task / f"{split}.tsv").open(encoding="utf-8", newline="") as file:
        return list(csv.DictReader(file, delimiter="\t", quoting=csv.QUOTE_NONE))


def train_text() -> str:
    tables = [row for task in TASKS[1:] for row in rows(task, "train")]
    return "\n".join(
        [paragraph["context"] for paragraph in paragraphs("train")]
        + [text for row in tables for key, text in row.items() if key != "label"]
    )


@pytest.mark.parametrize(("what", "files"), [("demo", 9), ("tagging", 8), ("relation", 5)])
def test_the_script_writes_the_committed_files_to_the_byte(what: str, files: int, tmp_path: Path) -> None:
    script = ROOT / "scripts" / f"make_{what}_data.py"
    subprocess.run([sys.executable, str(script), "--output", str(tmp_path)], check=True, capture_output=True)
    written = {path.relative_to(tmp_path): path.read_bytes() for path in tmp_path.rglob("*.*")}
    assert len(written) == files
    for name, content in written.items():
        assert (DATA / name).read_bytes() == content, f"{name} differs"


def test_the_vocabulary_knows_every_word_of_the_data_and_any_printable_text() -> None:
    entries = (DATA / "vocab.txt").read_text(encoding="utf-8").splitlines()
    assert entries[:5] == ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
    assert len(set(entries)) == len(entries)
    tokenizer = BertWordPieceTokenizer(str(DATA / "vocab.txt"), lowercase=True)
    texts = [train_text(), *(paragraph["context"] for paragraph in paragraphs("dev")), "Zyxw ~ 0.5% {q@x}"]
    assert all("[UNK]" not in encoding.tokens for encoding in tokenizer.encode_batch(texts))


def test_the_encoder_belongs_to_the_small_bert_and_the_vocabulary() -> None:
    encoder = DATA / "encoder"
    config = (ROOT / "configs" / "bert_small.json").read_text(encoding="utf-8")
    assert (encoder / "config.json").read_text(encoding="utf-8") == config
    assert (encoder / "vocab.txt").read_bytes() == (DATA / "vocab.txt").read_bytes()
    assert sum(path.stat().st_size for path in encoder.iterdir()) < 6_000_000


# The tutorial's tables: written by a script, with the two mistakes that the tutorial finds.


@pytest.fixture(scope="module")
def script() -> dict[str, Any]:
    return runpy.run_path(str(ROOT / "scripts" / "make_review_data.py"))


@pytest.mark.parametrize("language", ["en", "zh"])
def test_the_script_writes_the_committed_table(script: dict[str, Any], language: str) -> None:
    with (ROOT / "data" / "reviews" / f"reviews.{language}.csv").open(encoding="utf-8", newline="") as file:
        committed = list(csv.DictReader(file))
    assert script["reviews"](language) == committed
    text, topic, stars, _tags = committed[0]
    assert sorted(Counter(row[topic] for row in committed).values())[0] == 1
    assert Counter(Counter(row[text] for row in committed).values()) == {1: 398, 2: 1}
    assert {row[stars] for row in committed} == set("12345")
