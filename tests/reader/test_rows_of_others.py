"""Rows as other programs and languages write them: read as they are meant, or refused with the remedy."""

import json
import tracemalloc
from pathlib import Path
from typing import Any

import pytest

import palm
from helpers import tiny
from helpers.reader_files import encoded, write_text
from palm.controller.rows import RowKeys, sample, split
from palm.core.errors import DataError
from palm.reader import (
    ClassifyReader,
    MRCReader,
    MultiLabelReader,
    RankingReader,
    SequenceLabelReader,
    SpanReader,
)
from palm.reader.inspection import gold_of
from palm.reader.labels import Labels

SPANS = {"place": 0, "person": 1}


def lines(folder: Path, *rows: dict[str, Any], name: str = "rows.jsonl") -> Path:
    return write_text(folder, name, "".join(json.dumps(row) + "\n" for row in rows))


# ---- labels ----


def test_a_one_hot_list_is_an_error_with_the_remedy(vocab: Path, tmp_path: Path) -> None:
    path = lines(tmp_path, {"text_a": "a", "label": [0, 0, 1, 1]})
    with pytest.raises(DataError, match=r"rows.jsonl:1: .*looks one-hot.*label_columns"):
        list(MultiLabelReader(vocab, 16, n_classes=4).read(path, with_targets=True))


def test_a_message_about_one_of_several_labels_has_the_whole_cell(vocab: Path, tmp_path: Path) -> None:
    reader = MultiLabelReader(vocab, 16, label_map={"a": 0, "b": 1})
    path = write_text(tmp_path, "rows.csv", 'label,text_a\n"{a,b}",a\n')
    with pytest.raises(DataError, match=r"rows.csv:2: '\{a,b\}': the label '\{a' "):
        list(reader.read(path, with_targets=True))
    with pytest.raises(DataError, match=r"rows.jsonl:1: the label null "):
        list(reader.read(lines(tmp_path, {"text_a": "a", "label": [None]}), with_targets=True))


def test_a_number_that_is_too_large_is_shown_as_it_was_written(vocab: Path, tmp_path: Path) -> None:
    reader = ClassifyReader(vocab, 16, label_type="real")
    with pytest.raises(DataError, match=r"rows.jsonl:1: the label 1e\+39 is too large"):
        list(reader.read(lines(tmp_path, {"text_a": "a", "label": 1e39}), with_targets=True))


def test_a_row_without_candidates_or_a_context_is_refused_for_that(vocab: Path, tmp_path: Path) -> None:
    ranking = RankingReader(vocab, 16)
    for label, problem in (([], "candidates is empty"), ("[]", "candidates is empty")):
        path = lines(tmp_path, {"text_a": "a", "candidates": [], "label": label})
        with pytest.raises(DataError, match=rf"rows.jsonl:1: {problem}"):
            list(ranking.read(path, with_targets=True))
    path = lines(tmp_path, {"question": "a", "answers": ["b"]})
    with pytest.raises(DataError, match=r"rows.jsonl:1: 'context' is missing; the row has question, answers"):
        list(MRCReader(vocab, 16, max_query_len=4, doc_stride=4).read(path, with_targets=True))


def test_predictions_that_are_read_as_labels_are_reported(
    vocab: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    reader = ClassifyReader(vocab, 16, n_classes=2)
    path = lines(tmp_path, {"text_a": "a", "label": "1", "probability": 0.7})
    assert len(list(reader.read(path, with_targets=False))) == 1
    assert caplog.messages == []
    assert len(list(reader.read_gold(path))) == 1
    assert [line.startswith(f"{path}:1: label and probability") for line in caplog.messages] == [True]


def test_columns_by_number_are_refused_with_the_setting(vocab: Path, tmp_path: Path) -> None:
    reader = ClassifyReader(vocab, 16, n_classes=2, columns={"text_a": "0", "label": "1"})
    path = write_text(tmp_path, "rows.csv", "kind,message\n0,a\n")
    with pytest.raises(DataError, match=r"rows.csv:1: .*'1', '0'.* columns: \{label: "):
        list(reader.read(path, with_targets=True))


def test_an_empty_cell_is_not_annotated_and_an_empty_list_has_no_labels(vocab: Path, tmp_path: Path) -> None:
    path = write_text(tmp_path, "rows.tsv", "label\ttext_a\n[]\ta\n\tb\n0\tc\n")
    assert [each.label for each in MultiLabelReader(vocab, 16, n_classes=2).read(path, True)] == [[], [0]]
    reader = MultiLabelReader(vocab, 16, n_classes=2, missing_labels=True)
    assert [each.label for each in reader.read(path, True)] == [[], [-1, -2], [0]]
    assert [each.label for each in reader.read_gold(path)] == [[], [0]]
    counts = [*gold_of(reader, list(reader.read(path, True)), "train")]
    assert counts == [{"label_set": []}, {}, {"label_set": [0]}]
    path = write_text(tmp_path, "columns.csv", "x,y,text_a\n0,0,a\n,,b\n1,0,c\n")
    reader = MultiLabelReader(vocab, 16, label_columns=["x", "y"])
    assert [each.label for each in reader.read(path, True)] == [[], [0]]


def test_a_split_keeps_rows_without_labels_and_counts_an_empty_list_as_one() -> None:
    keys = RowKeys(1)
    for number, label in enumerate(["0", "", [], None] * 10):
        keys.add([f"text {number}"], label)
    assert [number == -1 for number in keys.labels[:4]] == [False, True, False, True]
    parts = split([keys], {"dev": 0.2})
    assert len(sample(keys, parts["train"], None, None)) + len(parts["dev"]) == 40


def test_a_label_of_two_code_points_is_that_of_one() -> None:
    assert Labels(None, {"café": 0}).value_of("cafe\u0301", "here") == 0
    assert Labels(None, {"cafe\u0301": 0}).value_of("café", "here") == 0


def test_tasks_with_some_labels_share_the_rows_of_a_split(folder: Path) -> None:
    texts = [line.split("\t") for line in (folder / "cls.tsv").read_text(encoding="utf-8").splitlines()[1:]]
    cells = [
        {"text_a": text, "colour": "" if k % 3 == 0 else label, "tags": [] if k % 2 else None}
        for k, (label, text) in enumerate(texts)
    ]
    table = str(lines(folder, *cells))
    config = tiny.config(folder, "cls", num_epochs=1, split={"dev": 0.2})
    task = {**config["tasks"]["cls"], "train_file": table}
    tags = {"reader": "multi_label", "paradigm": "multi_label", "n_classes": 2, "share_rows_with": "cls"}
    config["tasks"] = {
        "cls": {**task, "columns": {"label": "colour"}},
        "tags": {**tags, "train_file": table, "columns": {"label": "tags"}},
    }
    config |= {"task_instance": "cls,tags", "target_tag": "1,1", "mix_ratio": "1,1"}
    training = palm.Controller(config, argv=[]).training()
    assert {len(each.stream.rows) for each in training.tasks} == {32}


def test_an_own_reader_needs_read_alone_to_be_evaluated(vocab: Path, tmp_path: Path) -> None:
    class Own(ClassifyReader):
        def read(self, path: Path, with_targets: bool) -> Any:
            yield from self.parse(path.read_text(encoding="utf-8").splitlines())

    path = write_text(tmp_path, "texts.txt", "a\nb\n")
    assert [each.text_a for each in Own(vocab, 16, n_classes=2).read_gold(path)] == ["a", "b"]


# ---- words ----


@pytest.mark.parametrize("word", ["नमस्ते", "தமிழ்", "مُحَمَّد", "cafe\u0301", "co\u00adop"])
def test_marks_belong_to_their_word(vocab: Path, tmp_path: Path, word: str) -> None:
    span = {"start": 0, "end": len(word), "label": "place"}
    path = lines(tmp_path, {"text_a": f"{word} x", "spans": [span]})
    reader = SpanReader(vocab, 16, SPANS)
    [example] = reader.read(path, with_targets=True)
    assert example.words == [word, "x"]
    path = lines(tmp_path, {"text_a": f"{word} x", "spans": [{**span, "end": 1}]})
    with pytest.raises(DataError, match="inside a word"):
        list(reader.read(path, with_targets=True))


@pytest.mark.parametrize(("text", "own"), [("서울에서 왔다", "서울"), ("ฉันอยู่กรุงเทพ", "กรุงเทพ")])
def test_spans_of_characters_end_inside_words(vocab: Path, tmp_path: Path, text: str, own: str) -> None:
    start = text.index(own)
    span = {"start": start, "end": start + len(own), "label": "place", "text": own}
    path = lines(tmp_path, {"text_a": text, "spans": [span]})
    reader = SpanReader(vocab, 32, SPANS, unit="character")
    [example] = reader.read(path, with_targets=True)
    assert reader.gold(example) == {"spans": [span]}


def test_a_chinese_text_without_spaces_has_characters_or_is_refused(vocab: Path, tmp_path: Path) -> None:
    text = "王伟现在在北京工作"
    labels = {"O": 0, "B": 1}
    with pytest.raises(DataError, match=r"text 0: .*no spaces.*for_cn"):
        list(SequenceLabelReader(vocab, 16, labels).parse([text]))
    reader = SequenceLabelReader(vocab, 16, labels, for_cn=True)
    expected = [list(text), list(text), ["王伟", "现在"]]
    assert [each.words for each in reader.parse([text, list(text), "王伟 现在"])] == expected
    path = write_text(tmp_path, "rows.tsv", f"text_a\tlabel\n{text}\tB O O O O B O O O\n")
    [example] = reader.read(path, with_targets=True)
    assert example.labels == [1, 0, 0, 0, 0, 1, 0, 0, 0]


# ---- a span's own text ----


@pytest.mark.parametrize(
    ("text", "start", "end"), [("😀 in Rome", 6, 10), ("in Rome and Rome", 11, 15), (["in", "Rome"], 0, 1)]
)
def test_a_span_that_is_not_its_own_text_is_an_error(
    vocab: Path, tmp_path: Path, text: str | list[str], start: int, end: int
) -> None:
    span = {"start": start, "end": end, "label": "place", "text": "Rome"}
    path = lines(tmp_path, {"text_a": text, "spans": [span]})
    with pytest.raises(DataError, match=r"rows.jsonl:1: span 0: .* but its text is 'Rome', at \d+"):
        list(SpanReader(vocab, 16, SPANS).read(path, with_targets=True))


def test_a_span_whose_text_is_nowhere_is_an_error(vocab: Path, tmp_path: Path) -> None:
    span = {"start": 0, "end": 2, "label": "place", "text": "Oslo"}
    path = lines(tmp_path, {"text_a": "in Rome", "spans": [span]})
    with pytest.raises(DataError, match="'in', but its text is 'Oslo', which text_a does not contain"):
        list(SpanReader(vocab, 16, SPANS).read(path, with_targets=True))


# ---- bounds ----


def test_a_text_that_is_cut_is_not_tokenized_whole(vocab: Path) -> None:
    reader = ClassifyReader(vocab, 8)
    long = "red boat " * 200_000
    short, huge, wide = reader.parse(["red boat " * 20, long, "red" + " " * 1000 + "boat"])
    tracemalloc.start()
    rows = reader.encode([short, huge, wide], with_targets=False)
    assert tracemalloc.get_traced_memory()[1] < 10_000_000
    tracemalloc.stop()
    assert rows["token_ids"][0].tolist() == rows["token_ids"][1].tolist()
    assert len(rows["token_ids"][2]) == 4


@pytest.mark.parametrize("column", ["label", "text_a"])
def test_a_deeply_nested_cell_is_refused_by_name(vocab: Path, tmp_path: Path, column: str) -> None:
    deep = "[" * 100_000 + "]" * 100_000
    cells = {"label": "0", "text_a": "a", column: deep}
    path = write_text(tmp_path, "rows.tsv", "label\ttext_a\n" + f"{cells['label']}\t{cells['text_a']}\n")
    reader = MultiLabelReader(vocab, 16, n_classes=2)
    if column == "label":
        with pytest.raises(DataError, match=r"rows.tsv:2: label is not a list"):
            list(reader.read(path, with_targets=True))
    else:
        assert len(encoded(reader, path, with_targets=True)) == 1


@pytest.mark.parametrize("first", ["-DOCSTART- -X- -X- O", "EU\tB-ORG", "EU NNP B-NP B-ORG", "said\tO"])
def test_a_file_of_conll_is_pointed_to_the_conversion(vocab: Path, tmp_path: Path, first: str) -> None:
    path = write_text(tmp_path, "train.tsv", f"{first}\n\nrejects\tO\n")
    with pytest.raises(DataError, match=r"train\.tsv:1: .*CoNLL.*words"):
        list(SequenceLabelReader(vocab, 16, {"O": 0}).read(path, with_targets=True))
