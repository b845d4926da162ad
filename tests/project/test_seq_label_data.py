"""The tagging demo's data: written by a script, rightly labelled, and dev asks about names never seen."""

from __future__ import annotations

import json
import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest

from palm.metrics.spans import entities
from palm.reader import ClassifyReader, SequenceLabelReader
from palm.reader.words import TaggedExample

ROOT = Path(__file__).resolve().parents[2]
DATA = ROOT / "data"


def examples(split: str) -> list[TaggedExample]:
    reader = SequenceLabelReader(
        DATA / "vocab.txt", 64, DATA / "tagging" / "label_map.json", do_lower_case=True, n_classes=26
    )
    return list(reader.read(DATA / "tagging" / f"{split}.tsv", with_targets=True))


def values(split: str, *kinds: str) -> set[str]:
    """What is labelled as one of these kinds."""
    names = list(json.loads((DATA / "tagging" / "label_map.json").read_text(encoding="utf-8")))
    found = set()
    for example in examples(split):
        for kind, first, last in entities([names[label] for label in example.labels or []]):
            if kind in kinds:
                found.add(" ".join(example.words[first : last + 1]))
    return found


def test_the_script_writes_the_committed_files_to_the_byte(tmp_path: Path) -> None:
    script = ROOT / "scripts" / "make_tagging_data.py"
    subprocess.run([sys.executable, str(script), "--output", str(tmp_path)], check=True, capture_output=True)
    written = {path.relative_to(tmp_path): path.read_bytes() for path in tmp_path.rglob("*.*")}
    assert len(written) == 8
    assert sum(map(len, written.values())) < 400_000
    for name, content in written.items():
        assert (DATA / name).read_bytes() == content, f"{name} differs"


@pytest.mark.parametrize(("split", "number"), [("train", 1000), ("dev", 200)])
def test_every_request_is_there_for_both_tasks(split: str, number: int) -> None:
    reader = ClassifyReader(DATA / "vocab.txt", 64, n_classes=7, label_map=DATA / "intent" / "label_map.json")
    intents = list(reader.read(DATA / "intent" / f"{split}.tsv", with_targets=True))
    texts = [" ".join(example.words) for example in examples(split)]
    assert [example.text_a for example in intents] == texts
    assert len(set(texts)) == number
    counts = Counter(example.label for example in intents)
    assert set(counts) == set(range(7))
    assert max(counts.values()) - min(counts.values()) <= number / 20


def test_names_of_dev_are_not_in_train() -> None:
    for kinds in [("city", "from_city", "to_city"), ("artist",), ("song",), ("restaurant",), ("airline",)]:
        assert len(values("dev", *kinds)) > 10
        assert not values("dev", *kinds) & values("train", *kinds)
    assert values("dev", "cuisine") <= values("train", "cuisine")


def test_a_request_is_tagged_word_by_word() -> None:
    for example in examples("train") + examples("dev"):
        assert example.labels is not None
        assert len(example.words) == len(example.labels) <= 30
    assert {"port barford", "alhaven"} <= values("dev", "from_city", "to_city")


def test_the_vocabulary_knows_every_word() -> None:
    reader = SequenceLabelReader(
        DATA / "vocab.txt", 64, DATA / "tagging" / "label_map.json", do_lower_case=True
    )
    rows = reader.encode(examples("train") + examples("dev"), with_targets=False)
    assert len(rows) == 1200
    assert reader.tokenizer.unk_id not in rows["token_ids"].values
