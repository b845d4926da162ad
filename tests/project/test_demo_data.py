"""The demos' data: written by a script, in PALM's formats, and honest (dev asks about the unknown)."""

from __future__ import annotations

import csv
import json
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from tokenizers import BertWordPieceTokenizer

import palm

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


def test_the_script_writes_the_committed_files_to_the_byte(tmp_path: Path) -> None:
    script = ROOT / "scripts" / "make_demo_data.py"
    subprocess.run([sys.executable, str(script), "--output", str(tmp_path)], check=True, capture_output=True)
    written = {path.relative_to(tmp_path): path.read_bytes() for path in tmp_path.rglob("*.*")}
    assert len(written) == 9
    for name, content in written.items():
        assert (DATA / name).read_bytes() == content, f"{name} differs"


def test_all_data_with_the_vocabulary_is_under_three_megabytes() -> None:
    files = [path for task in TASKS for path in (DATA / task).iterdir()] + [DATA / "vocab.txt"]
    assert sum(path.stat().st_size for path in files) < 3_000_000


@pytest.mark.parametrize(("split", "least"), [("train", 3000), ("dev", 400)])
def test_every_answer_stands_where_its_question_says(split: str, least: int) -> None:
    ids = []
    for paragraph in paragraphs(split):
        for question in paragraph["qas"]:
            (answer,) = question["answers"]
            begin, text = answer["answer_start"], answer["text"]
            assert paragraph["context"][begin : begin + len(text)] == text
            ids.append(question["id"])
    assert len(set(ids)) == len(ids) >= least


@pytest.mark.parametrize("split", ["train", "dev"])
def test_paragraphs_are_short_enough_to_need_one_window(split: str) -> None:
    lengths = [len(paragraph["context"].split()) for paragraph in paragraphs(split)]
    assert 40 <= sum(lengths) / len(lengths) <= 60
    assert max(lengths) <= 90


def test_no_person_and_no_place_of_dev_occurs_in_training_data() -> None:
    known = train_text()
    titles = {article["title"] for article in articles("dev")}
    named = {
        question["answers"][0]["text"]
        for paragraph in paragraphs("dev")
        for question in paragraph["qas"]
        if question["question"].startswith(("Who", "Where", "In which town"))
    }
    invented = {name for name in titles | named if name[0].isupper()}
    assert len(invented) > 150
    assert [name for name in invented if name in known] == []


def test_half_of_the_paragraphs_speak_of_a_second_entity() -> None:
    """Half of the contexts also speak of a second entity."""
    asked = Counter(len(paragraph["qas"]) for paragraph in paragraphs("train"))
    assert set(asked) == {3, 4}
    assert 0.4 < asked[4] / asked.total() < 0.6


@pytest.mark.parametrize("split", ["train", "dev"])
def test_half_of_the_pairs_match(split: str) -> None:
    labels = Counter(row["label"] for row in rows("match4mrqa", split))
    assert labels["0"] == labels["1"]
    assert set(labels) == {"0", "1"}


def test_every_question_of_a_pair_comes_with_a_right_and_a_wrong_passage() -> None:
    by_question: dict[str, set[str]] = {}
    for row in rows("match4mrqa", "train"):
        by_question.setdefault(row["text_a"], set()).add(row["label"])
    assert all(labels == {"0", "1"} for labels in by_question.values())


@pytest.mark.parametrize("split", ["train", "dev"])
def test_the_four_classes_are_equally_frequent(split: str) -> None:
    labels = Counter(row["label"] for row in rows("cls4mrqa", split))
    assert set(labels) == {"0", "1", "2", "3"}
    assert len(set(labels.values())) == 1


@pytest.mark.parametrize("split", ["train", "dev"])
def test_tables_have_the_columns_of_palms_formats(split: str) -> None:
    columns = {task: list(rows(task, split)[0]) for task in TASKS[1:]}
    assert columns == {
        "match4mrqa": ["label", "text_a", "text_b"],
        "mlm4mrqa": ["text_a"],
        "cls4mrqa": ["label", "text_a"],
    }
    assert all(None not in row and all(row.values()) for task in TASKS[1:] for row in rows(task, split))


def test_the_vocabulary_knows_every_word_of_the_data_and_any_printable_text() -> None:
    entries = (DATA / "vocab.txt").read_text(encoding="utf-8").splitlines()
    assert entries[:5] == ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
    assert len(set(entries)) == len(entries)
    tokenizer = BertWordPieceTokenizer(str(DATA / "vocab.txt"), lowercase=True)
    texts = [train_text(), *(paragraph["context"] for paragraph in paragraphs("dev")), "Zyxw ~ 0.5% {q@x}"]
    assert all("[UNK]" not in encoding.tokens for encoding in tokenizer.encode_batch(texts))


@pytest.mark.parametrize("name", ["bert_small", "ernie_small"])
def test_the_small_backbones_fit_the_vocabulary(name: str) -> None:
    config = json.loads((ROOT / "configs" / f"{name}.json").read_text(encoding="utf-8"))
    assert config["vocab_size"] == len((DATA / "vocab.txt").read_text(encoding="utf-8").splitlines())


def test_the_encoder_belongs_to_the_small_bert_and_the_vocabulary() -> None:
    encoder = DATA / "encoder"
    config = (ROOT / "configs" / "bert_small.json").read_text(encoding="utf-8")
    assert (encoder / "config.json").read_text(encoding="utf-8") == config
    assert (encoder / "vocab.txt").read_bytes() == (DATA / "vocab.txt").read_bytes()
    assert sum(path.stat().st_size for path in encoder.iterdir()) < 6_000_000


def test_the_encoder_is_complete() -> None:
    backbone = palm.load_backbone(DATA / "encoder")
    weights = backbone.state_dict()
    assert weights["embeddings.word.weight"].shape == (1833, 128)
    assert sum(value.numel() for value in weights.values()) == 879_232
    assert all(value.dtype == torch.float32 and value.isfinite().all() for value in weights.values())
