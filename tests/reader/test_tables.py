"""Tables in every format: what is read, where mistakes are, and that the format does not matter."""

from __future__ import annotations

import gzip
import json
import lzma
import os
import pickle
import re
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from helpers.messages import raises
from helpers.reader_files import write_rows, write_text, write_vocabulary
from palm.core.errors import ConfigError, DataError
from palm.reader import ClassifyReader, MRCReader, SequenceLabelReader
from palm.reader.cache import key_of, training_rows
from palm.reader.rows import BadRows
from palm.reader.tables.columns import Columns, TableRow
from palm.reader.tables.files import files_of
from palm.reader.tables.reading import raw_rows, read_table, usable

ROWS = [{"label": str(k % 2), "text_a": f"the {['boat', 'door'][k % 2]} {k}"} for k in range(9)]


def cells(path: Path, *names: str) -> list[dict[str, Any]]:
    return [dict(row.cells) for row in map(usable, read_table(path, Columns(names)))]


# ---- formats ----


@pytest.mark.parametrize("packed", ["", ".gz", ".bz2", ".xz"])
@pytest.mark.parametrize("kind", [".tsv", ".csv", ".jsonl", ".parquet", ".arrow"])
def test_every_format_gives_the_same_rows(vocab: Path, tmp_path: Path, kind: str, packed: str) -> None:
    reader = ClassifyReader(vocab, 12, n_classes=2)
    expected = training_rows(reader, write_rows(tmp_path / "a.tsv", ROWS), None).digest
    path = write_rows(tmp_path / f"b{kind}{packed}", ROWS)
    if packed and kind in (".parquet", ".arrow"):  # they compress their own columns
        with pytest.raises(DataError, match="decompress"):
            training_rows(reader, path, None)
    else:
        assert training_rows(reader, path, None).digest == expected


def test_shards_are_read_in_the_order_of_their_names(vocab: Path, tmp_path: Path) -> None:
    reader = ClassifyReader(vocab, 12, n_classes=2)
    expected = training_rows(reader, write_rows(tmp_path / "a.tsv", ROWS), None).digest
    folder = tmp_path / "shards"
    folder.mkdir()
    parts = [
        write_rows(folder / name, ROWS[k : k + 3])
        for k, name in ((6, "3.csv"), (0, "1.jsonl"), (3, "2.csv.gz"))
    ]
    (folder / "notes.txt").write_text("no table")
    one, two, three = sorted(parts)
    for path in (folder, folder / "*.*s*", Path(f"{one},{two},{three}")):
        assert files_of(path) == [one, two, three]
        assert training_rows(reader, path, None).digest == expected
    before = key_of(reader, folder)
    write_rows(two, ROWS[:3])
    assert key_of(reader, folder) != before


def test_a_folder_that_datasets_saved_is_read_by_its_state(tmp_path: Path) -> None:
    write_rows(tmp_path / "data-00001-of-00002.arrow", ROWS[:4])
    write_rows(tmp_path / "data-00000-of-00002.arrow", ROWS[4:])
    write_rows(tmp_path / "cache-1.arrow", ROWS)
    named = [{"filename": f"data-0000{k}-of-00002.arrow"} for k in (0, 1)]
    (tmp_path / "state.json").write_text(json.dumps({"_data_files": named}))
    assert cells(tmp_path, "label", "text_a") == ROWS[4:] + ROWS[:4]


def test_a_name_without_a_known_suffix_is_read_as_format_says(vocab: Path, tmp_path: Path) -> None:
    path = write_rows(tmp_path / "a.csv", ROWS).rename(tmp_path / "a.txt")
    assert len(list(ClassifyReader(vocab, 12, format="csv").read(path, True))) == 9
    with pytest.raises(ConfigError, match=r"format.*'xml'"):
        ClassifyReader(vocab, 12, format="xml")


# ---- columns ----


def test_columns_are_found_by_name_nested_or_guessed(
    vocab: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    rows = [
        {"data": {"said": "the boat"}, "gold": 1, "extra": None},
        {"data": {"said": "a door"}, "gold": 0.0},
    ]
    path = write_rows(tmp_path / "a.jsonl", rows)
    reader = ClassifyReader(vocab, 12, columns={"text_a": "data.said", "label": "gold"})
    found = [(each.text_a, each.label) for each in reader.read(path, True)]
    assert found == [("the boat", 1), ("a door", 0)]
    pairs = [{"premise": "the boat", "hypothesis": "a door", "class": "1"}]
    [example] = ClassifyReader(vocab, 12).read(write_rows(tmp_path / "b.csv", pairs), True)
    assert (example.text_a, example.text_b, example.label) == ("the boat", "a door", 1)
    [said] = [line for line in caplog.messages if "b.csv:1" in line]
    assert all(
        f"{name}: {source}" in said for name, source in zip(("text_a", "text_b"), pairs[0], strict=False)
    )


@pytest.mark.parametrize(
    ("row", "columns", "values"),
    [
        ({"text": "a", "sentence": "b", "label": "1"}, {}, ["'text_a'"]),
        ({"sentence": "a", "label": "1"}, {"text_a": "sentense"}, ["'sentense'", "'sentence'"]),
        ({"text_a": "a", "intent": "1"}, {"label": "intend"}, ["'intend'", "'intent'"]),
    ],
)
@pytest.mark.parametrize("kind", ["csv", "jsonl"])
def test_a_missing_column_is_reported_with_the_ones_that_are_there(
    vocab: Path, tmp_path: Path, kind: str, row: dict[str, str], columns: dict[str, str], values: list[str]
) -> None:
    path = write_rows(tmp_path / f"a.{kind}", [row])
    with raises(DataError, f"a.{kind}", *values):
        list(ClassifyReader(vocab, 12, columns=columns).read(path, True))


def test_a_key_of_columns_is_a_column_of_the_reader(vocab: Path) -> None:
    with pytest.raises(ConfigError, match=r"columns.*'text'.*text_a"):
        ClassifyReader(vocab, 12, columns={"text": "sentence"})


def test_words_and_their_labels_may_be_lists(vocab: Path, tmp_path: Path) -> None:
    rows = [{"tokens": ["the", "boat"], "ner_tags": [0, "T"]}, {"tokens": ["door"], "ner_tags": ["T"]}]
    reader = SequenceLabelReader(vocab, 12, {"O": 0, "T": 1})
    path = tmp_path / "a.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    assert [(each.words, each.labels) for each in reader.read(path, True)] == [
        (["the", "boat"], [0, 1]),
        (["door"], [1]),
    ]
    write_rows(tmp_path / "b.csv", [{"text_a": "the boat", "label": "O T"}, {"text_a": "door", "label": "T"}])
    expected = training_rows(reader, tmp_path / "b.csv", None).digest
    assert training_rows(reader, path, None).digest == expected
    rows = [{"text_a": '["the", "boat"]', "label": '["O", "T"]'}, {"text_a": '["door"]', "label": '["T"]'}]
    assert training_rows(reader, write_rows(tmp_path / "c.csv", rows), None).digest == expected


@pytest.mark.parametrize(
    ("answers", "texts"),
    [
        ({"text": ["boat"], "answer_start": [4]}, ["boat"]),
        ([{"text": "boat", "answer_start": 4}], ["boat"]),
        ("boat", ["boat"]),
        ({"text": [], "answer_start": []}, []),
    ],
)
def test_questions_come_from_rows(vocab: Path, tmp_path: Path, answers: Any, texts: list[str]) -> None:
    row = {"question": "a red door ?", "context": "the boat", "answers": answers, "answer_start": 4}
    path = write_rows(tmp_path / "a.jsonl", [row, {**row, "id": "q", "answers": None}])
    reader = MRCReader(vocab, 24, 8, 8, remove_noanswer=False)
    [question] = reader.read(path, True)
    assert ([answer.text for answer in question.answers], question.id) == (texts, "1")
    assert [each.id for each in reader.read(path, False)] == ["1", "q"]
    assert [each["answers"] for each in map(reader.gold, reader.read_gold(path))] == [texts]


# ---- labels ----


def test_a_row_without_a_label_is_not_a_row_and_is_counted(
    vocab: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    rows = [{"text_a": "the boat", "label": label} for label in ("null", None, "nan", "")]
    path = write_rows(tmp_path / "a.jsonl", [*rows, {"text_a": "a door"}])
    reader = ClassifyReader(vocab, 12, label_map={"null": 0, "nan": 1})
    assert [each.label for each in reader.read(path, True)] == [0, 1]
    assert any("a.jsonl: 3 rows" in line for line in caplog.messages)
    assert len(list(reader.read_gold(path))) == 2
    assert len(list(reader.read(path, False))) == 5


def test_no_examples_are_not_rows(vocab: Path) -> None:
    for reader in (ClassifyReader(vocab, 16), SequenceLabelReader(vocab, 16, label_map={"O": 0})):
        assert len(reader.encode([], with_targets=True)) == 0


def test_a_file_in_which_no_row_has_a_label_is_refused(vocab: Path, tmp_path: Path) -> None:
    path = write_rows(tmp_path / "rows.tsv", [{**row, "label": ""} for row in ROWS])
    with pytest.raises(DataError) as caught:
        list(ClassifyReader(vocab, 16).read(path, with_targets=True))
    assert re.match(rf"{re.escape(str(path))}: .* 9 ", str(caught.value))
    assert len(list(ClassifyReader(vocab, 16).read(path, with_targets=False))) == 9


@pytest.mark.parametrize("kind", ["tsv", "csv", "parquet"])
def test_the_word_null_is_a_label_in_every_format(vocab: Path, tmp_path: Path, kind: str) -> None:
    rows = [{"text_a": "the boat", "label": label} for label in ("null", "", "nan", "NaN", "None", "NA")]
    reader = ClassifyReader(vocab, 12, label_map={"null": 0, "nan": 1, "NaN": 2, "None": 3, "NA": 4})
    found = [each.label for each in reader.read(write_rows(tmp_path / f"a.{kind}", rows), True)]
    assert found == [0, 1, 2, 3, 4]


@pytest.mark.parametrize("label", [1.5, True, "1.0", "01x", [1], {"a": 1}])
def test_a_value_that_names_no_label_is_reported(vocab: Path, tmp_path: Path, label: object) -> None:
    path = write_rows(tmp_path / "a.jsonl", [{"text_a": "the boat", "label": label}])
    with pytest.raises(DataError, match=r"a\.jsonl:1: the label"):
        list(ClassifyReader(vocab, 12, n_classes=2).read(path, True))


@pytest.mark.parametrize("label", [1, "1", 1.0])
def test_a_number_is_the_label_that_it_names(vocab: Path, tmp_path: Path, label: object) -> None:
    path = write_rows(tmp_path / "a.jsonl", [{"text_a": "the boat", "label": label}])
    assert [each.label for each in ClassifyReader(vocab, 12, n_classes=2).read(path, True)] == [1]
    named = ClassifyReader(vocab, 12, label_map={"0": 1, "1": 0})
    assert [each.label for each in named.read(path, True)] == [0]


# ---- mistakes ----


def problems(path: Path) -> list[str]:
    bad = BadRows(path, "skip")
    for row in read_table(path, Columns(["label", "text_a"])):
        if isinstance(row, DataError):
            bad.add(row)
    return [each.removeprefix(f"{path}:") for each in bad.problems]


def test_a_mistake_after_a_cell_of_two_lines_has_the_first_line_of_its_record(tmp_path: Path) -> None:
    path = tmp_path / "a.csv"
    path.write_bytes(
        b'\xef\xbb\xbflabel,text_a\r\n1,"two\r\nlines, ""quoted"""\r\n'
        b'0,"a\nb",c\r\n1,"x\ncaf\xe9"\r\n1,"no"end\r\n0,last\r\n'
    )
    found = [
        dict(row.cells) for row in read_table(path, Columns(["label", "text_a"])) if isinstance(row, TableRow)
    ]
    assert found == [{"label": "1", "text_a": 'two\r\nlines, "quoted"'}, {"label": "0", "text_a": "last"}]
    width, byte, quote = problems(path)
    assert width.startswith("4: 3 columns")
    assert byte.startswith("6: byte 4 of line 7, b'\\xe9'")
    assert quote.startswith("8: ")


def test_mistakes_of_json_lines_have_their_lines(tmp_path: Path) -> None:
    lines = [b'{"label": 1, "text_a": "a"}', b"[1]", b"{", b'{"label": 1, "label": 2}', b"", b'"\xff"', b"{}"]
    path = tmp_path / "a.jsonl"
    path.write_bytes(b"\n".join(lines) + b"\n\n")
    assert [line.split(":")[0] for line in problems(path)] == ["2", "3", "4", "5", "6", "7"]


def test_a_mistake_in_parquet_has_its_row_group_and_row(vocab: Path, tmp_path: Path) -> None:
    rows = [dict(row) for row in ROWS]
    rows[5]["label"] = "9"
    path = write_rows(tmp_path / "a.parquet", rows)
    with pytest.raises(DataError, match=r"a\.parquet: row group 2, row 2: .*'9'"):
        list(ClassifyReader(vocab, 12, n_classes=2).read(path, True))


def test_two_columns_of_one_name_in_parquet_are_refused(vocab: Path, tmp_path: Path) -> None:
    parquet = pytest.importorskip("pyarrow.parquet")
    arrow = pytest.importorskip("pyarrow")
    columns = [arrow.array(values) for values in (["0", "1"], ["a", "b"], ["1", "0"])]
    parquet.write_table(arrow.table(columns, names=["label", "text_a", "label"]), tmp_path / "a.parquet")
    with pytest.raises(DataError, match=r"a\.parquet: .*'label' twice"):
        list(ClassifyReader(vocab, 12, n_classes=2).read(tmp_path / "a.parquet", True))


@pytest.mark.parametrize("kind", ["tsv", "csv", "jsonl", "parquet", "arrow", "csv.gz"])
def test_rows_that_cannot_be_used_are_left_out_where_the_setting_wants_it(
    vocab: Path, tmp_path: Path, kind: str, caplog: pytest.LogCaptureFixture
) -> None:
    rows = [dict(row) for row in ROWS]
    rows[2]["label"] = rows[7]["label"] = "9"
    path = write_rows(tmp_path / f"a.{kind}", rows)
    kept = list(ClassifyReader(vocab, 12, n_classes=2, on_bad_row="skip").read(path, True))
    assert [each.text_a for each in kept] == [row["text_a"] for row in rows if row["label"] != "9"]
    assert any(re.search(r"\b2 rows ", line) for line in caplog.messages)
    with pytest.raises(DataError) as caught:
        list(ClassifyReader(vocab, 12, n_classes=2).read(path, True))
    assert str(caught.value).count("'9'") == 2


@pytest.mark.parametrize(
    ("name", "content", "values"),
    [
        ("a.tsv", b"label\ttext_a\tlabel\n1\ta\t0\n", ["a.tsv:1: ", "'label' twice"]),
        ("a.csv", b"label,text_a,label\n1,a,0\n", ["a.csv:1: ", "'label' twice"]),
        ("a.csv", b"label; text_a\n1; a\n", ["a.csv:1:", "'text_a'", "label; text_a", "commas"]),
        ("a.csv", b"label, text_a\n1, a\n", ["a.csv:1:", "'text_a'", "' text_a'", "rename"]),
        ("a.csv", b"\nlabel,text_a\n", ["a.csv:1:", "header", "text_a"]),
        ("a.xlsx", b"PK\3\4\x14\0\6\0", ["a.xlsx", "ZIP", "CSV"]),
        ("a.zip", b"PK\3\4", ["a.zip", "ZIP", "CSV"]),
        ("a.csv", b"PK\3\4", ["a.csv", "ZIP", "CSV"]),
        ("a.xls", b"\xd0\xcf\x11\xe0\xa1", ["a.xls", "Excel", "CSV"]),
        ("a.pkl", pickle.dumps({"label": [1]}), ["a.pkl", "pickle", "CSV"]),
        # The time of compression would give each test process another name for this test.
        ("a.csv", gzip.compress(b"label,text_a\n", mtime=0), ["a.csv", ".gz", "CSV"]),
    ],
)
def test_a_header_or_a_file_of_another_form_is_refused_with_the_remedy(
    vocab: Path, tmp_path: Path, name: str, content: bytes, values: list[str]
) -> None:
    (tmp_path / name).write_bytes(content)
    with raises(DataError, *values):
        list(ClassifyReader(vocab, 12, n_classes=2).read(tmp_path / name, True))


@pytest.mark.parametrize("kind", ["tsv", "csv", "jsonl"])
def test_marks_and_line_ends_of_windows_change_nothing(tmp_path: Path, kind: str) -> None:
    path = write_rows(tmp_path / f"a.{kind}", ROWS)
    lines = path.read_bytes().replace(b"\r\n", b"\n")
    path.write_bytes(b"\xef\xbb\xbf" + lines.replace(b"\n", b"\r\n") + b"\r\n\r\n")
    assert cells(path, "label", "text_a") == ROWS


@pytest.mark.parametrize("kind", ["tsv", "csv", "jsonl"])
def test_bytes_that_are_not_utf_8_are_reported_with_their_place(tmp_path: Path, kind: str) -> None:
    path = write_rows(tmp_path / f"a.{kind}", ROWS)
    lines = path.read_bytes().replace(b"\r\n", b"\n").split(b"\n")
    lines[3] = lines[3].replace(b"boat", b"b\xe4t").replace(b"door", b"d\xe4r")
    path.write_bytes(b"\n".join(lines))
    [problem] = problems(path)
    byte = lines[3].index(b"\xe4") + 1
    assert problem.startswith(f"4: byte {byte} of line 4, b'\\xe4'")


def test_a_mistake_in_a_shard_names_the_shard(vocab: Path, tmp_path: Path) -> None:
    write_rows(tmp_path / "1.csv", ROWS)
    write_rows(tmp_path / "2.csv", [{"label": "1", "text_a": "a"}, {"label": "9", "text_a": "b"}])
    reader = ClassifyReader(vocab, 12, n_classes=2)
    reader.bad_rows = BadRows(tmp_path, "skip")
    assert len(list(reader.read(tmp_path / "*.csv", True))) == 10
    [problem] = reader.bad_rows.problems
    assert problem.startswith(f"{tmp_path / '2.csv'}:3: ")


@pytest.mark.parametrize("kind", ["tsv", "csv", "jsonl", "parquet"])
def test_a_cell_may_have_megabytes(tmp_path: Path, kind: str) -> None:
    row = {"label": "1", "text_a": "boat " * 600_000}
    assert cells(write_rows(tmp_path / f"a.{kind}", [row, row]), "label", "text_a") == [row, row]


# ---- any table ----

ANY = settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
TEXT = st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\0"), max_size=12)
TABLE = st.lists(st.tuples(TEXT, TEXT), min_size=1, max_size=5)


@ANY
@given(rows=TABLE)
@pytest.mark.parametrize("kind", ["csv", "jsonl", "parquet"])
def test_what_others_write_is_read_as_it_was(tmp_path: Path, rows: list[tuple[str, str]], kind: str) -> None:
    table = [{"one": one, "two": two} for one, two in rows]
    assert [
        dict(row.cells) for row in map(usable, raw_rows(write_rows(tmp_path / f"a.{kind}", table)))
    ] == table


@ANY
@given(data=st.binary(max_size=60) | TEXT.map(str.encode))
@pytest.mark.parametrize("kind", ["tsv", "csv", "jsonl", "parquet", "arrow", "csv.gz", "csv.xz"])
def test_any_bytes_end_in_rows_or_in_an_error(tmp_path: Path, data: bytes, kind: str) -> None:
    path = tmp_path / f"a.{kind}"
    path.write_bytes(b"one,two\n" + data if kind == "csv" else data)
    with suppress(DataError):
        assert all(row.place.startswith(str(path)) for row in map(usable, raw_rows(path)))


def test_a_key_twice_in_a_line_of_json_is_named(tmp_path: Path) -> None:
    path = tmp_path / "rows.jsonl"
    path.write_text('{"label": "0", "text_a": "x"}\n{"label": "0", "label": "1"}\n', encoding="utf-8")
    with raises(DataError, f"{path}:2: ", "'label' twice"):
        list(map(usable, raw_rows(path)))


@pytest.mark.parametrize("suffix", ["", ".gz", ".xz"])
def test_a_table_that_changes_while_it_is_read_is_an_error(tmp_path: Path, suffix: str) -> None:
    file = tmp_path / f"data.tsv{suffix}"
    opener: Any = {"": open, ".gz": gzip.open, ".xz": lzma.open}[suffix]
    with opener(file, "wb") as stream:
        stream.write(b"label\ttext_a\n" + b"1\tthe dog\n" * 10)
    rows = map(usable, raw_rows(file))
    next(rows)
    whole = file.read_bytes()
    (tmp_path / "new").write_bytes(b"")
    (tmp_path / "new").replace(file)  # the old file is read to its end
    assert len(list(rows)) == 9
    file.write_bytes(whole)
    rows = map(usable, raw_rows(file))
    next(rows)
    os.utime(file, (1, 1))
    with pytest.raises(DataError, match="changed while it was being read"):
        list(rows)


# ---- what a file says about its own values ----


def test_offsets_outside_of_a_damaged_file_are_an_error(tmp_path: Path) -> None:
    pyarrow = pytest.importorskip("pyarrow")
    from pyarrow import ipc

    offsets = pyarrow.py_buffer(b"".join(n.to_bytes(4, "little") for n in (0, 4, 8)))
    texts = pyarrow.StringArray.from_buffers(2, offsets, pyarrow.py_buffer(b"goodbad!"))
    batch = pyarrow.RecordBatch.from_arrays([pyarrow.array([0, 1]), texts], ["label", "text_a"])
    file = tmp_path / "train.arrow"
    with ipc.new_stream(file, batch.schema) as writer:
        writer.write_batch(batch)
    whole = file.read_bytes()
    assert whole.count(offsets.to_pybytes()) == 1
    broken = b"".join(n.to_bytes(4, "little") for n in (0, 4, 1 << 16))
    file.write_bytes(whole.replace(offsets.to_pybytes(), broken))
    with raises(DataError, "train.arrow"):
        list(ClassifyReader(write_vocabulary(tmp_path), 16).read(file, True))


def test_a_real_label_of_minus_a_hundred_is_a_label(tmp_path: Path) -> None:
    path = write_text(tmp_path, "dev.tsv", "label\ttext_a\n-100\ta\n")
    reader = ClassifyReader(write_vocabulary(tmp_path), 16, label_type="real")
    assert list(map(reader.gold, reader.read_gold(path))) == [{"value": -100.0}]
