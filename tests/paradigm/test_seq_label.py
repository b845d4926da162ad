"""Sequence labelling: words and labels in files, rows and losses, and a name for every word at the end."""

from __future__ import annotations

import json
import math
import random
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

import palm
from helpers import tiny
from helpers.reader_files import encoded, rng_of_row, write_text
from palm.controller.controller import Controller
from palm.core.errors import DataError, WiringError
from palm.core.saved import describe, rebuild
from palm.metrics.spans import entity_scores
from palm.paradigm import HEADS, SequenceLabel
from palm.reader import SequenceLabelReader
from palm.reader.tokenizing import word_windows
from palm.reader.words import split_words

MAP = {"O": 0, "B-colour": 1, "B-thing": 2, "I-thing": 3}


def reader_of(vocab: Path, max_seq_len: int = 16, **settings: Any) -> SequenceLabelReader:
    return SequenceLabelReader(vocab, max_seq_len, MAP, **settings)


def table(folder: Path, *lines: str) -> Path:
    return write_text(folder, "tags.tsv", "\n".join(["text_a\tlabel", *lines]) + "\n")


# Words


@pytest.mark.parametrize(
    ("cell", "words"),
    [
        ("the red boat", ["the", "red", "boat"]),
        ("  the  red ", ["the", "red"]),
        ("the\x02New York\x02boat", ["the", "New York", "boat"]),
        ("the\x02red\x02", ["the", "red"]),
        ("10\u00a0000 people", ["10\u00a0000", "people"]),
        ("boat", ["boat"]),
        (" ", []),
    ],
)
def test_words_are_separated_by_spaces_or_by_the_originals_separator(cell: str, words: list[str]) -> None:
    assert split_words(cell) == words


@given(st.lists(st.integers(1, 7), min_size=1), st.integers(7, 20))
def test_windows_hold_every_word_once_and_as_many_as_fit(num_pieces: list[int], capacity: int) -> None:
    windows = word_windows(num_pieces, capacity)
    assert [word for window in windows for word in window] == list(range(len(num_pieces)))
    sizes = [sum(num_pieces[word] for word in window) for window in windows]
    assert all(1 <= size <= capacity for size in sizes)
    assert all(
        size + num_pieces[after[0]] > capacity for size, after in zip(sizes, windows[1:], strict=False)
    )


# The reader


def test_a_word_is_labelled_at_its_first_piece(tmp_path: Path, vocab: Path) -> None:
    reader = reader_of(vocab)
    path = table(tmp_path, "the red xy boat\tO B-colour B-thing I-thing", "door\tB-thing")
    batch = reader.collate(encoded(reader, path, True), [0, 1], rng_of_row)
    tokens = [reader.tokenizer.tokens(row.tolist()) for row in batch["token_ids"]]
    assert tokens[0] == ["[CLS]", "the", "red", "x", "##y", "boat", "[SEP]"]
    assert batch["label_ids"].tolist() == [[-100, 0, 1, 2, -100, 3, -100], [-100, 2] + [-100] * 5]
    assert batch["word_mask"].equal(batch["label_ids"] != -100)
    assert batch["input_mask"].sum(1).tolist() == [7, 3]
    for name, spec in {**reader.outputs_attr, **reader.targets_attr}.items():
        assert (tuple(batch[name].shape), batch[name].dtype) == ((2, 7), spec.dtype)


def test_a_word_without_pieces_is_an_unknown_one(vocab: Path) -> None:
    reader = reader_of(vocab)
    rows = reader.encode(list(reader.parse([["the", "\u200b", "", "boat"]])), with_targets=False)
    tokens = reader.tokenizer.tokens(rows["token_ids"][0])
    assert tokens == ["[CLS]", "the", "[UNK]", "[UNK]", "boat", "[SEP]"]
    assert rows["word_starts"][0].tolist() == [1, 2, 3, 4]


def test_a_long_text_continues_in_further_rows(tmp_path: Path, vocab: Path) -> None:
    reader = reader_of(vocab, max_seq_len=6)  # room for four pieces
    path = table(
        tmp_path, "the xyz a red boat the\tO B-thing O B-colour B-thing O", "xyzxyz door\tI-thing B-thing"
    )
    rows = encoded(reader, path, True)
    tokens = [reader.tokenizer.tokens(rows["token_ids"][row])[1:-1] for row in range(len(rows))]
    assert tokens == [
        ["the", "x", "##y", "##z"],
        ["a", "red", "boat", "the"],
        ["x", "##y", "##z", "##x"],  # a word longer than a row loses its end, but not its label
        ["door"],
    ]
    assert rows["example"].values.tolist() == [0, 0, 1, 1]
    assert [rows["label_ids"][row].tolist() for row in range(4)] == [[0, 2], [0, 1, 2, 0], [3], [2]]
    decoded = [{"labels": rows["label_ids"][row].tolist()} for row in range(4)]
    examples = list(reader.read(path, with_targets=False))
    assert list(reader.records(examples, rows, decoded, first=7)) == [
        {"index": 7, "labels": ["O", "B-thing", "O", "B-colour", "B-thing", "O"]},
        {"index": 8, "labels": ["I-thing", "B-thing"]},
    ]


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("the red boat\tO O", r"tags\.tsv:2: 2 labels for 3 words;"),
        ("the\tO O", r"tags\.tsv:2: 2 labels for 1 word;"),
        ("the\tB-color", r"tags\.tsv:2: .*'B-color' .*'B-colour'"),
        ("\tO", r"tags\.tsv:2: text_a is empty"),
        ("the red boat", r"tags\.tsv:2: 1 column, expected 2 \(text_a, label\)"),
    ],
)
def test_a_wrong_line_is_reported_with_its_place(
    tmp_path: Path, vocab: Path, line: str, message: str
) -> None:
    path = table(tmp_path, line)
    with pytest.raises(DataError, match=message):
        list(reader_of(vocab).read(path, with_targets=True))


# The head


def outputs_of(rows: list[list[list[float]]]) -> dict[str, torch.Tensor]:
    """Log-probabilities of two classes; a word whose numbers are 0 does not count."""
    probs = torch.tensor(rows)
    return {"logits": probs.clamp(min=0.01).log(), "word_mask": probs.sum(-1) > 0}


def test_the_loss_is_the_mean_over_words_wherever_they_are() -> None:
    outputs = outputs_of([[[0, 0], [0.5, 0.5], [0.2, 0.8]], [[0, 0], [0.9, 0.1], [0, 0]]])
    targets = {"label_ids": torch.tensor([[-100, 0, 1], [-100, 0, -100]])}
    expected = -(math.log(0.5) + math.log(0.8) + math.log(0.9)) / 3
    assert SequenceLabel(2, 4).loss(outputs, targets).item() == pytest.approx(expected)


def test_the_crf_chain_passes_over_what_is_not_a_word() -> None:
    head = SequenceLabel(2, 4, use_crf=True)
    assert head.crf is not None
    with torch.no_grad():
        head.crf.weight[2:] = torch.tensor([[-5.0, 0.0], [0.0, -5.0]])  # neighbours should differ
    outputs = outputs_of([[[0, 0], [0.9, 0.1], [0, 0], [0.6, 0.4]], [[0, 0], [0.3, 0.7], [0, 0], [0, 0]]])
    assert head.decode(outputs) == [{"labels": [0, 1]}, {"labels": [1]}]
    assert SequenceLabel(2, 4).decode(outputs) == [{"labels": [0, 0]}, {"labels": [1]}]
    # exp(score) of 00, 01, 10, 11 in the first row; the second has one word, and probabilities that add up.
    apart = math.exp(-5)
    ways = [0.54 * apart, 0.36, 0.06, 0.04 * apart]
    expected = -(math.log(0.36 / sum(ways)) + math.log(0.7)) / 2
    targets = {"label_ids": torch.tensor([[-100, 0, -100, 1], [-100, 1, -100, -100]])}
    assert head.loss(outputs, targets).item() == pytest.approx(expected, rel=1e-5)


@pytest.mark.parametrize("use_crf", [False, True])
def test_a_label_that_is_not_a_class_is_named(use_crf: bool) -> None:
    outputs = outputs_of([[[0, 0], [0.5, 0.5], [0.2, 0.8]]])
    with pytest.raises(WiringError, match=r"label_ids: \[2, 7\] are outside 0\.\.1; n_classes is 2"):
        SequenceLabel(2, 4, use_crf=use_crf).loss(outputs, {"label_ids": torch.tensor([[-100, 7, 2]])})


# A run from settings to names


def write_tagged(folder: Path, rows: int = 40) -> Path:
    """Texts of `tiny`'s words in which colours, and things with their ages, are labelled."""
    tiny.write_files(folder)
    (folder / "labels.json").write_text(json.dumps(MAP), encoding="utf-8")
    rng = random.Random(1)
    lines = ["text_a\tlabel"]
    for _ in range(rows):
        name, colour, thing = (rng.choice(words) for words in (tiny.NAMES, tiny.COLOURS, tiny.THINGS))
        if rng.random() < 0.5:
            lines.append(f"{name} has a {colour} {thing} .\tO O O B-colour B-thing O")
        else:
            lines.append(f"the old {thing} of {name} is {colour}\tO B-thing I-thing O O O B-colour")
    (folder / "tags.tsv").write_text("\n".join(lines) + "\n", encoding="utf-8")
    return folder


def config(folder: Path, **settings: Any) -> dict[str, Any]:
    path = str(folder / "tags.tsv")
    made = tiny.config(folder, "cls", num_epochs=12, learning_rate=3e-3, **settings)
    task = {"train_file": path, "pred_file": path, "label_map": str(folder / "labels.json"), "n_classes": 4}
    return {**made, "tasks": {"cls": {"reader": "seq_label", "paradigm": "seq_label", **task, **settings}}}


def tagged(folder: Path) -> tuple[list[list[str]], list[list[str]]]:
    """Words and labels of the data file."""
    lines = (folder / "tags.tsv").read_text(encoding="utf-8").splitlines()[1:]
    words, labels = zip(*(line.split("\t") for line in lines), strict=True)
    return [text.split() for text in words], [text.split() for text in labels]


def test_a_run_learns_and_writes_a_name_for_every_word(tmp_path: Path) -> None:
    use_crf = True
    folder = write_tagged(tmp_path)
    Controller(config(folder, use_crf=use_crf), argv=[]).train()
    predictions = Controller(config(folder, use_crf=use_crf), for_train=False, argv=[]).pred("cls")
    words, labels = tagged(folder)
    lines = (folder / "out" / "cls" / "predictions.json").read_text(encoding="utf-8").splitlines()
    assert [json.loads(line) for line in lines] == list(predictions)
    assert [record["index"] for record in predictions] == list(range(40))
    predicted = [record["labels"] for record in predictions]
    assert [len(text) for text in predicted] == [len(text) for text in words]
    assert entity_scores(predicted, labels)["f1"] > 0.9
    model = palm.load_model(folder / "out" / "cls" / "infer_model")
    assert [record["labels"] for record in model.predict(words)] == predicted


def test_the_component_door_has_the_crf_and_the_defaults_of_2_x() -> None:
    published = {"use_crf": True, "crf_learning_rate_factor": 1e-3, "emission_l2": 1e-4}
    for head in (palm.head.SequenceLabel(5, 16), palm.head.SequenceLabel(5, 16, 0.1, 1e-3, 0.02, "train")):
        assert published.items() <= head.settings.items()
        assert head.rate_factors == {"crf.weight": 1e-3}
        assert head.l2_decays == {"out.weight": 1e-4}
    assert palm.head.SequenceLabel(5, 16, learning_rate=0.5).rate_factors == {"crf.weight": 0.5}


def test_the_published_head_is_saved_as_seq_label(tmp_path: Path) -> None:
    head = palm.head.SequenceLabel(5, 16, learning_rate=0.5)
    saved = describe(HEADS, head, tmp_path)
    assert saved["name"] == "seq_label"
    again = rebuild(HEADS, saved, tmp_path)
    assert (type(again), again.settings) == (SequenceLabel, head.settings)
