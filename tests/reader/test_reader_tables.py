"""Tables of texts and labels: what is read, what becomes of it, and how mistakes in a file are reported."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from helpers.reader_files import encoded, rng_of_row, write_text
from palm.core.errors import ConfigError, DataError
from palm.reader import ClassifyReader, MatchReader
from palm.reader.labels import Labels
from palm.reader.tables.columns import Columns
from palm.reader.tables.reading import read_table, usable
from palm.reader.tokenizer import fitting_lengths


def table(tmp_path: Path, *lines: str) -> Path:
    return write_text(tmp_path, "train.tsv", "\n".join(lines) + "\n")


def words(reader: ClassifyReader | MatchReader, rows: Any, row: int = 0) -> str:
    return " ".join(reader.tokenizer.tokens(rows["token_ids"][row]))


# ---- rows and batches ----


def test_a_batch_is_padded_to_its_longest_row(vocab: Path, tmp_path: Path) -> None:
    reader = ClassifyReader(vocab, 8, task_id=3)
    rows = encoded(reader, table(tmp_path, "label\ttext_a", "1\tthe boat", "0\tthe old red door ."), True)

    batch = reader.collate(rows, [1, 0], rng_of_row)

    ids = {token: number for number, token in enumerate(vocab.read_text("utf-8").split("\n"))}
    long = [ids[token] for token in ["[CLS]", "the", "old", "red", "door", ".", "[SEP]"]]
    short = [ids[token] for token in ["[CLS]", "the", "boat", "[SEP]"]]
    assert {name: tensor.tolist() for name, tensor in batch.items()} == {
        "token_ids": [long, [*short, 0, 0, 0]],
        "position_ids": [[0, 1, 2, 3, 4, 5, 6], [0, 1, 2, 3, 0, 0, 0]],
        "segment_ids": [[0] * 7, [0] * 7],
        "task_ids": [[3] * 7, [3, 3, 3, 3, 0, 0, 0]],
        "input_mask": [[True] * 7, [True] * 4 + [False] * 3],
        "label_ids": [0, 1],
    }


def test_two_texts_are_two_segments(vocab: Path, tmp_path: Path) -> None:
    reader = MatchReader(vocab, 16)
    rows = encoded(reader, table(tmp_path, "text_b\tlabel\ttext_a", "a door ?\t1\tthe boat"), True)

    assert words(reader, rows) == "[CLS] the boat [SEP] a door ? [SEP]"
    assert reader.collate(rows, [0], rng_of_row)["segment_ids"].tolist() == [[0, 0, 0, 0, 1, 1, 1, 1]]


@pytest.mark.parametrize(
    ("max_seq_len", "lines", "expected"),
    [
        (6, ["label\ttext_a\ttext_b", "0\tthe old boat\tthe door"], "[CLS] the old [SEP] the [SEP]"),
        (5, ["label\ttext_a", "0\tthe old new red green"], "[CLS] the old new [SEP]"),
    ],
    ids=["a second text", "a long text"],
)
def test_texts_lose_their_ends(
    vocab: Path, tmp_path: Path, max_seq_len: int, lines: list[str], expected: str
) -> None:
    reader = ClassifyReader(vocab, max_seq_len)
    assert words(reader, encoded(reader, table(tmp_path, *lines), True)) == expected


@given(st.integers(0, 60), st.integers(0, 60), st.integers(0, 60))
def test_the_longer_of_two_texts_loses_one_token_at_a_time(a: int, b: int, budget: int) -> None:
    first, second = a, b
    while first + second > budget:
        first, second = (first - 1, second) if first > second else (first, second - 1)

    assert fitting_lengths(a, b, budget) == (first, second)


def test_for_cn_takes_the_blanks_out_of_both_texts(vocab: Path, tmp_path: Path) -> None:
    reader = MatchReader(vocab, 24, for_cn=True)
    rows = encoded(reader, table(tmp_path, "label\ttext_a\ttext_b", "1\t中国 的 首都\t北 京"), True)

    assert words(reader, rows) == "[CLS] 中 国 的 首 都 [SEP] 北 京 [SEP]"
    assert next(reader.read(tmp_path / "train.tsv", True)).text_a == "中国的首都"


def test_a_length_without_room_for_text_is_refused(vocab: Path) -> None:
    with pytest.raises(ConfigError, match=r"max_seq_len .*at least 3, not 2"):
        ClassifyReader(vocab, 2)
    with pytest.raises(ConfigError, match=r"max_seq_len .*at least 5, not 4"):
        MatchReader(vocab, 4)


# ---- the file ----


def test_only_line_feeds_end_a_line_and_quotes_are_text(tmp_path: Path) -> None:
    path = write_text(
        tmp_path, "odd.tsv", '\ufefftext_a\tlabel\r\n"a\u2028b\x0bc\x1cd\x85\t1\r\n\'e\u2029"\t0'
    )

    rows = [row.cells for row in map(usable, read_table(path, Columns(["label", "text_a"])))]

    expected = [{"text_a": '"a\u2028b\x0bc\x1cd\x85', "label": "1"}, {"text_a": "'e\u2029\"", "label": "0"}]
    assert rows == expected


def test_a_comma_in_a_cell_without_quotes_is_told_with_its_remedy(tmp_path: Path) -> None:
    path = tmp_path / "new.csv"
    path.write_text("text_a\nplum cake , needs 30 minutes\n", encoding="utf-8")
    (problem,) = read_table(path, Columns(["text_a"]))
    assert "'plum cake , needs 30 minutes'; put a cell with commas into double quotes" in str(problem)


def test_columns_that_nobody_asked_for_are_passed_over(vocab: Path, tmp_path: Path) -> None:
    path = table(tmp_path, "qid\tlabel\tnote\ttext_a", "7\t2\t\tthe boat")

    [example] = ClassifyReader(vocab, 8).read(path, with_targets=True)

    assert (example.text_a, example.text_b, example.label) == ("the boat", None, 2)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("label\ttext_a\ttext_b\n1\ta\tb\n1\twhere is it", r"train.tsv:3: 2 columns, .*'1\\twhere is it'$"),
        ("label\ttext_a\ttext_b\n1\n", r"train.tsv:2: 1 column, expected 3"),
        ("label\ttext_a\ttext_b\n1\ta\tb\n\n1\ta\tb\n", r"train.tsv:3: a blank line, expected 3 .*remove it"),
        ("", r"train.tsv:1: expected .*header.*\(label, text_a, text_b\)"),
        ("label\ttext_a\ttext_b\n", r"train.tsv: .*header"),
        ("label\ttext_a\ttextb\n1\ta\tb\n", r"train.tsv:1: .*'text_b'; .*rename 'textb' to 'text_b'"),
        ("label\ttext_a\ttext_b\ttext_a\n1\ta\tb\tc\n", r"train.tsv:1: .*'text_a' twice"),
        ("label\ttext_a\ttext_b\n1\t \tb\n", r"train.tsv:2: text_a is empty"),
        ("label\ttext_a\ttext_b\n1\ta\t\n", r"train.tsv:2: text_b is empty"),
        ("label\ttext_a\ttext_b\nyes\ta\tb\n", r"train.tsv:2: .*'yes'.* 0 to 1"),
        ("label\ttext_a\ttext_b\n2\ta\tb\n", r"train.tsv:2: .*'2'.* 0 to 1"),
        ("label\ttext_a\ttext_b\n-1\ta\tb\n", r"train.tsv:2: .*'-1'.* 0 to 1"),
        ("label\ttext_a\ttext_b\n1.0\ta\tb\n", r"train.tsv:2: .*'1.0'.*whole number"),
    ],
)
def test_a_mistake_in_a_file_is_reported_with_its_line(
    vocab: Path, tmp_path: Path, content: str, message: str
) -> None:
    path = write_text(tmp_path, "train.tsv", content)
    with pytest.raises(DataError, match=message):
        list(MatchReader(vocab, 16).read(path, with_targets=True))


# ---- label names ----


@pytest.fixture
def label_map(tmp_path: Path) -> Path:
    return write_text(tmp_path, "labels.json", json.dumps({"negative": 0, "positive": 1}))


def test_labels_may_be_names(vocab: Path, tmp_path: Path, label_map: Path) -> None:
    path = table(tmp_path, "label\ttext_a", "positive\tthe boat", "negative\tthe door")
    for mapping in (label_map, {"negative": 0, "positive": 1}):
        reader = ClassifyReader(vocab, 8, label_map=mapping)
        assert encoded(reader, path, True)["label_ids"].values.tolist() == [1, 0]


def test_a_label_outside_the_map_is_reported_with_its_line(
    vocab: Path, tmp_path: Path, label_map: Path
) -> None:
    path = table(tmp_path, "label\ttext_a", "positiv\tthe boat")
    with pytest.raises(DataError, match=r"train.tsv:2: .*'positiv' .*\(negative, positive\).* 'positive'"):
        list(ClassifyReader(vocab, 8, label_map=label_map).read(path, with_targets=True))


@pytest.mark.parametrize(
    ("mapping", "message"),
    [
        ({}, "label_map: .*mapping"),
        ({"no": 0, "yes": "1"}, "label_map: .*'yes' .* 0 to 2147483647, not '1'"),
        ({"no": 0, "nein": 0}, "label_map: 'no' and 'nein' .* 0"),
        ({"no": 0, "yes": 2}, "label_map: .*2 of 'yes' .*n_classes 2"),
    ],
)
def test_a_label_map_that_makes_no_sense_is_refused(
    vocab: Path, mapping: dict[str, int], message: str
) -> None:
    with pytest.raises(ConfigError, match=message):
        ClassifyReader(vocab, 8, n_classes=2, label_map=mapping)


# ---- prediction ----


def test_a_record_has_the_number_the_probabilities_and_the_name(vocab: Path, label_map: Path) -> None:
    reader = ClassifyReader(vocab, 8, label_map=label_map)
    examples = list(reader.parse(["the boat", {"text_a": "the door"}]))
    rows = reader.encode(examples, with_targets=False)
    decoded = [{"label": 1, "probs": [0.25, 0.75]}, {"label": 0, "probs": [0.5, 0.5]}]

    assert list(reader.records(examples, rows, decoded, first=7)) == [
        {"index": 7, "label": 1, "probs": [0.25, 0.75], "label_name": "positive"},
        {"index": 8, "label": 0, "probs": [0.5, 0.5], "label_name": "negative"},
    ]


@pytest.mark.parametrize(
    ("kind", "value", "message"),
    [
        (ClassifyReader, 5, r"text 1: expected .*\{'text_a': …\}.*, not 5"),
        (ClassifyReader, {"text": "x"}, r"text 1: expected "),
        (ClassifyReader, {"text_a": 3}, r"text 1: text_a .*not 3"),
        (ClassifyReader, "  ", r"text 1: text_a is empty"),
        (MatchReader, "x", r"text 1: expected a pair .*\{'text_a': …, 'text_b': …\}, not 'x'"),
        (MatchReader, ("x",), r"text 1: expected a pair"),
        (MatchReader, {"text_a": "x"}, r"text 1: expected a pair"),
        (MatchReader, ("x", None), r"text 1: text_b .*not None"),
    ],
)
def test_a_value_that_is_not_an_example_is_reported_with_its_number(
    vocab: Path, kind: type[ClassifyReader | MatchReader], value: object, message: str
) -> None:
    good: Any = "fine" if kind is ClassifyReader else ("fine", "fine")
    with pytest.raises(DataError, match=message):
        list(kind(vocab, 16).parse([good, value]))


def test_a_label_map_with_a_label_twice_is_refused(tmp_path: Path) -> None:
    (tmp_path / "labels.json").write_text('{"a": 0, "b": 1, "a": 2}', encoding="utf-8")
    with pytest.raises(DataError, match=r"labels\.json.*'a' twice"):
        Labels(None, tmp_path / "labels.json")
