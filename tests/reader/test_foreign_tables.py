"""Tables that harm or are odd: nothing crashes, memory is bounded, and nothing else is opened."""

from __future__ import annotations

import bz2
import gzip
import json
import lzma
import random
import re
import sys
from collections.abc import Callable
from pathlib import Path, PureWindowsPath
from typing import Any

import pytest

from helpers.loaded import run_script
from helpers.reader_files import write_vocabulary
from palm.config import DataPath
from palm.config.conversion import convert_value
from palm.config.files import Setting, data_path, full_url, public
from palm.core.errors import DataError
from palm.reader import ClassifyReader, SequenceLabelReader
from palm.reader.tables.columns import cell_text
from palm.reader.tables.files import (
    MAX_CELL,
    Selection,
    data_checksum,
    files_of,
    is_data,
    is_url,
    keep_selection,
    max_cell,
    parts_of,
    shown_path,
    table_of,
)
from palm.reader.tables.reading import raw_rows, usable

MIB = 1 << 20


def rows(path: Path) -> list[dict[str, Any]]:
    return [dict(row.cells) for row in map(usable, raw_rows(path))]


def written(path: Path, text: str | bytes) -> Path:
    path.write_bytes(text.encode() if isinstance(text, str) else text)
    return path


def stored(path: Path, table: Any, features: dict[str, Any] | None = None, **settings: Any) -> Path:
    """A table of Arrow in a file of the kind of its name, with the features that `datasets` notes."""
    pyarrow = pytest.importorskip("pyarrow")
    table = pyarrow.table(table) if isinstance(table, dict) else table
    if features:
        metadata = {"huggingface": json.dumps({"info": {"features": features}})}
        table = table.replace_schema_metadata(metadata)
    if path.suffix == ".parquet":
        pytest.importorskip("pyarrow.parquet").write_table(table, path, **settings)
    else:
        with pyarrow.ipc.new_stream(path, table.schema) as stream:
            stream.write_table(table, **settings)
    return path


def printed(folder: Path, program: str, *words: str) -> str:
    """What a program prints in a process of its own."""
    errors = folder / "errors.txt"
    status, output = run_script(written(folder / "program.py", program), folder, *words, errors=errors)
    assert status == 0, errors.read_text()
    return output


def refused(path: Path) -> str:
    with pytest.raises(DataError) as caught:
        rows(path)
    return str(caught.value)


# Mutated files: each ends in rows or in one sentence, in a process that survives.

MUTANTS = """
import random, sys
from pathlib import Path
from palm.core.errors import DataError
from palm.reader.tables.reading import raw_rows, usable
folder, count = Path(sys.argv[1]), int(sys.argv[2])
ends = {"rows": 0, "refused": 0}
for source in sorted(folder.glob("whole.*")):
    content = source.read_bytes()
    for seed in range(count):
        draw = random.Random(f"{source.name} {seed}")
        bytes_ = bytearray(content)
        for _ in range(draw.choice([1, 1, 2, 8])):
            at = draw.randrange(len(bytes_))
            way = draw.randrange(4)
            if way == 0:
                bytes_[at] ^= 1 << draw.randrange(8)
            elif way == 1:
                bytes_[at : at + 4] = draw.choice([b"\\xff\\xff\\xff\\x7f", b"\\0\\0\\0\\0", b"\\0\\0\\1\\0"])
            elif way == 2:
                bytes_[at] = draw.randrange(256)
            else:
                del bytes_[at : at + draw.randrange(1, 64)]
        mutant = folder / f"mutant{source.suffix}"
        mutant.write_bytes(bytes_)
        try:
            for row in map(usable, raw_rows(mutant)):
                str(row.cells).encode()
            ends["rows"] += 1
        except DataError:
            ends["refused"] += 1
print(ends["rows"], ends["refused"])
"""


def test_a_mutated_arrow_or_parquet_file_is_read_or_refused(tmp_path: Path) -> None:
    pyarrow = pytest.importorskip("pyarrow")
    draw = random.Random(7)
    table = pyarrow.table(
        {
            "label": [draw.randrange(3) for _ in range(40)],
            "text_a": ["the boat " * draw.randrange(1, 9) for _ in range(40)],
            "words": [["a", "door"] * draw.randrange(3) for _ in range(40)],
            "kind": pyarrow.array(["red", "blue"] * 20).dictionary_encode(),
        }
    )
    stored(tmp_path / "whole.parquet", table, row_group_size=16)
    stored(tmp_path / "whole.arrow", table, max_chunksize=16)
    with pyarrow.ipc.new_file(tmp_path / "whole.file.arrow", table.schema) as stream:
        stream.write_table(table, max_chunksize=16)
    assert len(rows(tmp_path / "whole.file.arrow")) == len(rows(tmp_path / "whole.arrow")) == 40
    read, told = map(int, printed(tmp_path, MUTANTS, str(tmp_path), "140").split())
    assert read + told == 420
    assert told > 100


# Bounds: one limit, checked while reading, under a limit on the memory of the process.

READ = """
import resource, sys
from pathlib import Path
from palm.core.errors import DataError
from palm.reader.tables.reading import raw_rows, usable
import pyarrow.parquet, pyarrow.compute, fsspec
used = int(Path("/proc/self/statm").read_text().split()[0]) * 4096
resource.setrlimit(resource.RLIMIT_AS, (used + (1 << 30), -1))
for name in sys.argv[1:]:
    try:
        kind = "squad" if "squad" in name else None
        print(sum(1 for _ in map(usable, raw_rows(Path(name), default=kind))), "rows")
    except DataError as error:
        print(error)
"""


def bombs(folder: Path) -> dict[str, Path]:
    """Small files with large cells."""
    pyarrow = pytest.importorskip("pyarrow")
    found = {}
    for suffix, opener in {".gz": gzip.open, ".bz2": bz2.open, ".xz": lzma.open}.items():
        path = found[f"tsv{suffix}"] = folder / f"cell.tsv{suffix}"
        with opener(path, "wb") as file:
            file.write(b"label\ttext_a\n1\t")
            for _ in range(100 if suffix == ".gz" else 17):  # the others compress slowly
                file.write(b"a" * MIB)
    for suffix, head, tail in ((".csv", b'label,text_a\n1,"', b'"\n'), (".jsonl", b'{"text_a": "', b'"}\n')):
        path = found[suffix] = folder / f"cell{suffix}.gz"
        with gzip.open(path, "wb", compresslevel=1) as file:
            file.write(head)
            for _ in range(60):
                file.write(b"a" * (MIB - 1) + (b"\n" if suffix == ".csv" else b"a"))
            file.write(tail)
    squad = found["squad"] = folder / "squad.json.gz"
    squad.write_bytes(gzip.compress(b" " * MIB, 1) * 300)
    long = "a" * (200 * MIB)
    stored(folder / "cell.parquet", {"text_a": [long]})
    many = pyarrow.DictionaryArray.from_arrays(pyarrow.array([0, 1] * 300, "int32"), [long[: 12 * MIB], "b"])
    stored(folder / "many.parquet", {"text_a": many})
    words = pyarrow.DictionaryArray.from_arrays(pyarrow.array([0] * 1000, "int32"), [long[: 20 * MIB]])
    stored(folder / "many.arrow", {"text_a": words})
    for kind in ("parquet", "arrow"):
        one = pyarrow.DictionaryArray.from_arrays(pyarrow.array([0] * 2000, "int32"), [long[: 12 * MIB]])
        lists = pyarrow.ListArray.from_arrays(pyarrow.array([0, 1000, 2000], "int32"), one)
        stored(folder / f"nested.{kind}", {"words": lists})
    packed = pyarrow.ipc.IpcWriteOptions(compression="zstd")
    rows = pyarrow.table({"text_a": [long[:MIB]] * 300, "label": range(300)})
    kinds = {"packed.arrow": pyarrow.ipc.new_file, "packed-words.arrow": pyarrow.ipc.new_stream}
    words = pyarrow.DictionaryArray.from_arrays([0], [long[: 5 * MIB] + str(k) for k in range(60)])
    for name, content in zip(kinds, (rows, pyarrow.table({"text_a": words})), strict=True):
        with kinds[name](folder / name, content.schema, options=packed) as stream:
            stream.write_table(content)
    names = ("cell.parquet", "many.parquet", "many.arrow", "nested.parquet", "nested.arrow", *kinds)
    found |= {name: folder / name for name in names}
    return found


@pytest.mark.skipif(sys.platform != "linux", reason="limits the memory of a process")
def test_large_cells_in_small_files_are_refused_in_bounded_memory(tmp_path: Path) -> None:
    files = bombs(tmp_path)
    ends = dict(zip(files, printed(tmp_path, READ, *map(str, files.values())).splitlines(), strict=True))
    assert ends.pop("many.parquet") == "600 rows"  # each of 12 MiB, one at a time
    for name, told in ends.items():
        assert told.startswith(str(files[name])), told
        assert "16" in told
    assert MAX_CELL in ends["tsv.gz"]


READERS_INPUTS = """
import json, random, resource, sys
from pathlib import Path
from palm.config.conversion import REQUIRED, settings_of
from palm.core.errors import DataError
from palm.reader import READERS
folder = Path(sys.argv[1])
GOOD = {
    "label": "a", "spans": [[0, 3, "a"]], "relations": [], "choices": ["a", "b"], "candidates": ["a", "b"],
    "negatives": ["a"], "answers": {"text": ["boat"], "answer_start": [4]}, "id": "q",
}
ODD = [
    None, "", 0, 1, -1, 2.5, 1e308, float("nan"), True, [], {}, ["the", "boat"], [0, 1], [["a", "b"]], [None],
    [1.5], 10**30, [10**30], "x" * 5000, chr(0x202E) + chr(0),
    "[1, 2", '["a"]', '{"a": 1}', "1e400", [{}], [[]],
    {"text": "boat"}, {"text": [1], "answer_start": ["x"]}, [{"text": "boat", "answer_start": 4}], [True],
    [{"start": "0", "end": 3, "label": "a"}], [{"head": 0, "tail": 1, "label": "a"}], [[5, 2, "a"]],
    [[-1, 2, "a"]], [[0, 99, "a"]], [[0, 1, "a"]], "[" * 5000, {"a": {"b": [{}]}},
]
used = int(Path("/proc/self/statm").read_text().split()[0]) * 4096
resource.setrlimit(resource.RLIMIT_AS, (used + (1 << 30), -1))
read = told = 0
for name in READERS:
    settings = {"vocab_path": folder / "vocab.txt", "max_seq_len": 24}
    for each in settings_of(READERS[name]).values():
        if each.name.endswith("label_map"):
            settings[each.name] = {"a": 0, "b": 1}
        elif each.default is REQUIRED:
            settings.setdefault(each.name, 8)
    reader = READERS[name](**settings)
    for seed in range(28):
        draw = random.Random(f"{name} {seed}")
        row = {
            column: draw.choice(ODD) if draw.random() < 0.3 else GOOD.get(column, "the boat")
            for column in reader.known_columns
            if draw.random() < 0.95
        }
        if seed == 0 and name in ("cls", "match", "multi_label"):
            row = {column: GOOD.get(column, "the boat " * 1_200_000) for column in reader.known_columns}
        path = folder / "rows.jsonl"
        path.write_text(json.dumps(row) + "\\n", encoding="utf-8")
        with_targets = draw.random() < 0.7
        try:
            reader.encode_usable(list(reader.read(path, with_targets)), with_targets)
            read += 1
        except DataError:
            told += 1
print(read, told)
"""


@pytest.mark.skipif(sys.platform != "linux", reason="limits the memory of a process")
def test_odd_rows_of_every_reader_are_read_or_refused_in_bounded_memory(tmp_path: Path) -> None:
    write_vocabulary(tmp_path)
    read, told = map(int, printed(tmp_path, READERS_INPUTS, str(tmp_path)).split())
    assert read + told >= 300
    assert min(read, told) > 50


@pytest.mark.parametrize("text", ["the boat " * 60_000, "  " * 70_000 + "the old door", "中" * 200_000])
def test_a_long_text_has_the_tokens_of_its_beginning(tmp_path: Path, text: str) -> None:
    tokenizer = ClassifyReader(write_vocabulary(tmp_path), 16).tokenizer
    (whole,) = tokenizer.encode([text])
    (some,) = tokenizer.encode([text], 16)
    assert some[:17] == whole[:17]
    assert len(some) <= len(whole)


def test_the_limit_is_a_setting(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = written(tmp_path / "a.tsv", f"label\ttext_a\n0\tred\n1\t{'a' * 2 * MIB}\n")
    assert len(rows(path)) == 2
    monkeypatch.setenv(MAX_CELL, "1")
    assert refused(path).startswith(f"{path}:3: ")
    monkeypatch.setenv(MAX_CELL, "many")
    with pytest.raises(DataError, match="'many'"):
        max_cell()


# Nothing that was not named.


@pytest.mark.parametrize("name", ["a.tsv,", ",a.tsv", "a.tsv,,b.tsv", ","])
def test_a_stray_comma_is_an_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    monkeypatch.chdir(tmp_path)
    written(tmp_path / "a.tsv", "label\ttext_a\n0\tred\n")
    written(tmp_path / "b.tsv", "label\ttext_a\n1\tblue\n")
    assert "comma" in refused(Path(name))
    assert not is_data(Path(name))


@pytest.mark.skipif(sys.platform == "win32", reason="links")
def test_one_file_by_two_names_is_read_once(tmp_path: Path) -> None:
    path = written(tmp_path / "a.tsv", "label\ttext_a\n0\tred\n")
    (tmp_path / "b.tsv").symlink_to(path)
    (tmp_path / "c.tsv").hardlink_to(path)
    again = tmp_path / "." / "a.tsv"
    for name in (f"{path},{again}", tmp_path / "*.tsv", tmp_path, f"{tmp_path / 'b.tsv'},{path}"):
        assert len(rows(Path(name))) == 1


SECRET = "https://anna:pa@ss@host.org/data/a,b[1].csv?token=abc&x=1"


def test_addresses_are_shown_and_written_without_secrets() -> None:
    shown = public(SECRET)
    assert re.fullmatch(r"https://host\.org/data/a,b\[1\]\.csv\?…[0-9a-f]{8}", shown)
    assert public(str(Path(SECRET))) == public(shown) == shown
    assert public(SECRET.replace("x=1", "x=2")) != shown
    assert public(f"x: {SECRET} is not there") == f"x: {shown} is not there"
    path = convert_value(Setting(["/data/b.csv", SECRET], "", Path()), DataPath)
    assert path == Path(f"/data/b.csv,{shown}")
    written = data_path("s3://store/a.csv")  # as a configuration for another process has it
    assert convert_value(Setting(str(written), "", Path("/base")), DataPath) == written
    assert full_url(shown) == SECRET
    assert data_path(Path(SECRET)) == data_path(Path(shown)) == Path(shown)
    assert full_url(str(data_path(Path(shown)))).startswith("https:/")
    assert "pa@ss" in full_url(shown)
    assert data_path("a,b?.csv") == Path("a,b?.csv")
    with pytest.raises(DataError, match="whole URL"):
        files_of(Path("https://host.org/other.csv?…0123abcd"))
    text = "ask a@b.org, 1:2 and part-?.csv"
    assert public(text) == text
    pytest.importorskip("fsspec")
    pytest.importorskip("aiohttp")
    with pytest.raises(DataError) as caught:
        files_of(Path("http://anna:secret@127.0.0.1:9/a.csv?token=abc"))
    assert not {"secret", "anna", "abc"} & {*str(caught.value).replace("@", " ").replace("=", " ").split()}
    assert "127.0.0.1:9/a.csv" in str(caught.value)


def test_an_address_may_have_commas_and_brackets_and_lists_may_mix() -> None:
    one = "https://host.org/a,b[1].csv"
    six = "http://[::1]:8000/a.csv"
    parts = parts_of(Path(f"{one},{six},/data/c.csv"))
    assert [public(str(part)) for part in parts] == [one, six, "/data/c.csv"]
    assert is_url(Path(six))


def test_an_address_of_this_machine_is_a_file(tmp_path: Path) -> None:
    path = written(tmp_path / "a.tsv", "label\ttext_a\n0\tred\n")
    assert rows(Path(f"file://{path}")) == [{"label": "0", "text_a": "red"}]
    assert not is_url(Path(f"file://{path}"))


def test_a_path_of_windows_is_an_address_or_none() -> None:
    assert is_url(PureWindowsPath("https://host.org/a.csv"))  # type: ignore[arg-type]
    assert not is_url(PureWindowsPath("C:\\data\\a.csv"))  # type: ignore[arg-type]


def test_chosen_rows_of_others_open_only_what_lies_beside_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PALM_DATA_CACHE", str(tmp_path / "cache"))
    mine = written(tmp_path / "mine.tsv", "label\ttext_a\n0\ta door\n1\ta boat\n")
    folder = tmp_path / "theirs"
    folder.mkdir()
    (folder / "link.tsv").symlink_to(mine)
    digest = data_checksum(mine)
    for table in (mine, folder / "link.tsv", Path("https://anna:secret@127.0.0.1:9/a.csv")):
        told = refused(written(folder / "a.rows.json", Selection(table, digest, [1], {}).text))
        assert table.name in told
        assert "secret" not in told
    text = Selection(mine, digest, [1], {}).text
    assert table_of(keep_selection("a.rows.json", text)) == mine
    chosen = Selection(mine, digest, [1], {"where": {"label": "1"}, "split": {"test": 0.5}}).text
    assert shown_path(keep_selection("a.test.rows.json", chosen)) == (
        f"{mine} (test rows, chosen by where, split)"
    )
    # The same choice of this user is known again wherever its file lies.
    assert rows(written(folder / "a.rows.json", text)) == [{"label": "1", "text_a": "a boat"}]
    beside = written(folder / "own.tsv", mine.read_text())
    assert rows(written(folder / "b.rows.json", Selection(beside, digest, [1], {}).text)) == [
        {"label": "1", "text_a": "a boat"}
    ]


@pytest.mark.parametrize("cache", ["", "/dev/null/cache"])
def test_chosen_rows_are_known_without_a_cache_of_the_user_also_to_processes_that_start(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, cache: str
) -> None:
    monkeypatch.setenv("PALM_DATA_CACHE", cache)
    table = written(tmp_path / "mine.tsv", "label\ttext_a\n0\ta door\n")
    kept = keep_selection("a.rows.json", Selection(table, data_checksum(table), [0], {}).text)
    assert table_of(kept) == table
    program = (
        "import sys, pathlib, palm.reader.tables.files as f; print(f.table_of(pathlib.Path(sys.argv[1])))"
    )
    assert printed(tmp_path, program, str(kept)) == f"{table}\n"


def test_a_process_that_this_one_starts_knows_the_secrets_of_addresses(tmp_path: Path) -> None:
    addresses = [f"https://anna:secret@host.org/{number}.csv?token={'abc' * 500}" for number in range(200)]
    shown = [str(data_path(address)) for address in addresses]
    assert not [word for word in ("secret", "abc") if word in "".join(shown)]
    program = "import sys; from palm.config.files import full_url; print(*map(full_url, sys.argv[1:]))"
    assert printed(tmp_path, program, *shown).split() == addresses
    for odd in ("https://host.org/a.csv?t=\0", "https://host.org/a.csv?t=\ud800"):
        assert full_url(str(data_path(odd))) == str(data_path(odd))


# Odd files and folders: one sentence.


def broken_state(folder: Path, content: str) -> Path:
    written(folder / "state.json", content)
    return folder


@pytest.mark.parametrize(
    "content",
    [
        '{"_data_files": [{"filename": "data-0.arrow"}]}',
        "[]",
        "{}",
        '{"_data_files": 3}',
        '{"_data_files": [1]}',
        '{"_data_files": [{"filename": 3}]}',
        "{",
    ],
)
def test_a_folder_of_datasets_without_a_shard_or_with_an_odd_list_is_refused(
    tmp_path: Path, content: str
) -> None:
    assert "state.json" in refused(broken_state(tmp_path, content))
    assert not is_data(tmp_path)


@pytest.mark.skipif(sys.platform == "win32", reason="links")
def test_a_loop_of_links_and_a_name_with_nul_are_missing_files(tmp_path: Path) -> None:
    (tmp_path / "a.tsv").symlink_to(tmp_path / "b.tsv")
    (tmp_path / "b.tsv").symlink_to(tmp_path / "a.tsv")
    for name in (tmp_path / "a.tsv", tmp_path / "a\0b.tsv", tmp_path / ("x" * 5000)):
        assert "cannot read" in refused(name)
        assert not is_data(name)


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("a.csv", ",label,text_a\n0,1,the boat\n"),  # the index of pandas
        ("a.tsv", "\tlabel\ttext_a\n0\t1\tthe boat\n"),
        ("a.jsonl", '{"": 0, "label": 1, "text_a": "the boat"}\n'),
    ],
)
def test_a_column_may_have_an_empty_name(tmp_path: Path, name: str, text: str) -> None:
    (example,) = ClassifyReader(write_vocabulary(tmp_path), 16).read(written(tmp_path / name, text), True)
    assert (example.text_a, example.label) == ("the boat", 1)
    (example,) = ClassifyReader(tmp_path / "vocab.txt", 16, columns={"label": ""}).read(tmp_path / name, True)
    assert (example.text_a, example.label) == ("the boat", 0)


def test_a_lone_surrogate_is_no_text(tmp_path: Path) -> None:
    path = written(tmp_path / "a.csv", b"label,text_a\n1,\xed\xa0\x80\n")
    assert refused(path).startswith(f"{path}:2: ")


@pytest.mark.parametrize("way", ["read", "digest"])
def test_an_error_of_the_disk_while_input_is_read_is_told_of_the_input(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, way: str
) -> None:
    from palm.reader.tables import files

    path = written(tmp_path / "a.tsv", "label\ttext_a\n0\tred\n")

    def fail(*_: object) -> Any:
        raise OSError(5, "Input/output error")

    name = {"read": "reading.lines_of", "digest": "files.checksum"}[way]
    monkeypatch.setattr(f"palm.reader.tables.{name}", fail)
    read: Callable[[], object] = {"read": lambda: rows(path), "digest": lambda: files.digest_of([path])}[way]
    with pytest.raises(DataError, match=r"a\.tsv: cannot read"):
        read()


# Labels that the file itself names.


@pytest.mark.parametrize("kind", ["parquet", "arrow"])
def test_labels_with_names_in_the_file_are_those_of_the_label_map(tmp_path: Path, kind: str) -> None:
    features = {
        "label": {"names": ["pos", "neg"], "_type": "ClassLabel"},
        "ner_tags": {"feature": {"names": ["B-X", "O"], "_type": "ClassLabel"}, "_type": "Sequence"},
        "text_a": {"dtype": "string", "_type": "Value"},
    }
    table = {"label": [0, 1], "text_a": ["a red", "a door"], "ner_tags": [[0, 1], [1, 1]]}
    path = stored(tmp_path / f"a.{kind}", table, features)
    vocab = write_vocabulary(tmp_path)
    reader = ClassifyReader(vocab, 16, label_map={"neg": 0, "pos": 1})
    assert [each.label for each in reader.read(path, True)] == [1, 0]
    words = SequenceLabelReader(vocab, 16, {"O": 0, "B-X": 1}, columns={"label": "ner_tags"})
    assert [each.labels for each in words.read(path, True)] == [[1, 0], [0, 0]]
    with pytest.raises(DataError, match="'pos'"):
        list(ClassifyReader(vocab, 16, label_map={"no": 0, "yes": 1}).read(path, True))


def test_names_of_labels_count_in_lists_and_objects_and_where_text_counts(tmp_path: Path) -> None:
    pyarrow = pytest.importorskip("pyarrow")
    label = {"names": ["X", "Y"], "_type": "ClassLabel"}
    features = {
        "label": {"feature": label, "_type": "List"},
        "entities": [{"start": {"dtype": "int32", "_type": "Value"}, "kind": label}],
        "parts": {"feature": {"kind": label}, "_type": "Sequence"},
    }
    row = {"label": [1, 0], "entities": [{"start": 0, "kind": 1}, None], "parts": {"kind": [1, 0]}}
    (found,) = rows(stored(tmp_path / "a.parquet", pyarrow.Table.from_pylist([row]), features))
    assert found == row
    ids = [*found["label"], found["entities"][0]["kind"], *found["parts"]["kind"]]
    assert list(map(cell_text, ids)) == ["Y", "X", "Y", "Y", "X"]


def test_files_with_other_ids_for_a_label_are_refused_without_a_label_map(tmp_path: Path) -> None:
    reader = ClassifyReader(write_vocabulary(tmp_path), 16, n_classes=2)
    for name, names in (("a", ["no", "yes"]), ("b", ["yes", "no"])):
        table = {"label": [0, 1], "text_a": ["a red", "a door"]}
        label = {"names": names, "_type": "ClassLabel"}
        stored(tmp_path / f"{name}.parquet", table, {"label": label})
    assert [each.label for each in reader.read(tmp_path / "a.parquet", True)] == [0, 1]
    with pytest.raises(DataError, match=r"'yes'.*'no'.*label_map"):
        list(reader.read(tmp_path / "b.parquet", True))


def test_a_map_of_names_takes_a_whole_number_as_an_id_in_any_form(tmp_path: Path) -> None:
    lines = "".join(json.dumps({"label": label, "text_a": "a"}) + "\n" for label in (1, 1.0))
    path = written(tmp_path / "a.jsonl", lines)
    reader = ClassifyReader(write_vocabulary(tmp_path), 16, label_map={"no": 0, "yes": 1})
    assert [each.label for each in reader.read(path, True)] == [1, 1]


@pytest.mark.parametrize("name", ["rows.parquet", "rows.arrow"])
def test_without_pyarrow_the_command_that_installs_it_is_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    (tmp_path / name).write_bytes(b"PAR1")
    with pytest.raises(DataError, match=r"needs pyarrow: pip install 'palm-torch\[parquet\]'"):
        list(map(usable, raw_rows(tmp_path / name)))
