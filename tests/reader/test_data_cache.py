"""The data cache: encoded once, the same rows ever after, and never wrong ones."""

from __future__ import annotations

import json
import logging
import os
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from helpers import tiny
from helpers.equal import differing
from helpers.loaded import run_script
from palm.core.cache import KEPT_DAYS, Cache
from palm.core.layers import generator
from palm.reader import (
    ClassifyReader,
    Column,
    MaskLMReader,
    MatchReader,
    MRCReader,
    Reader,
    RelationReader,
    Rows,
    SequenceLabelReader,
    SpanReader,
)
from palm.reader import cache as cache_module
from palm.reader.cache import key_of, training_rows
from palm.train.stream import TaskStream

TAGGED = "text_a\tlabel\nanna has a boat\tB O O O\nthe red door\tO O O\n"


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "tagged.tsv").write_text(TAGGED + "old lamp\tO O\n" * 6, encoding="utf-8")
    return tiny.write_files(tmp_path)


@pytest.fixture
def cache(tmp_path: Path) -> Cache:
    return Cache(tmp_path / "cache")


def classify(folder: Path, **settings: Any) -> ClassifyReader:
    return ClassifyReader(folder / "vocab.txt", **{"max_seq_len": 24, "n_classes": 4, **settings})


READERS: dict[str, Callable[[Path], tuple[Reader, str]]] = {
    "real": lambda folder: (ClassifyReader(folder / "vocab.txt", 24, label_type="real"), "cls.tsv"),
    "cls": lambda folder: (classify(folder), "cls.tsv"),
    "match": lambda folder: (MatchReader(folder / "vocab.txt", 24), "match.tsv"),
    "mlm": lambda folder: (MaskLMReader(folder / "vocab.txt", 24), "mlm.tsv"),
    "mrc": lambda folder: (MRCReader(folder / "vocab.txt", 16, 8, 2), "mrc.json"),
    "span": lambda folder: (
        SpanReader(folder / "vocab.txt", 24, {"owner": 0, "thing": 1, "colour": 2}),
        "span.jsonl",
    ),
    "relation": lambda folder: (
        RelationReader(folder / "vocab.txt", 24, {"owns": 0, "is": 1}, span_label_map=tiny.SPANS),
        "span.jsonl",
    ),
    "seq_label": lambda folder: (
        SequenceLabelReader(folder / "vocab.txt", 8, {"O": 0, "B": 1}),
        "tagged.tsv",
    ),
}


def entries(cache: Cache) -> list[Path]:
    return sorted(place for place in cache.folder.glob("*") if place.is_dir())


def forbid_encoding(reader: Reader) -> None:
    def encode(*_: Any, **__: Any) -> Rows:
        raise AssertionError("encoded again")

    reader.encode = encode  # type: ignore[method-assign]


@pytest.mark.parametrize("name", READERS)
def test_batches_from_the_cache_are_those_from_memory(name: str, folder: Path, cache: Cache) -> None:
    reader, file = READERS[name](folder)
    in_memory = training_rows(reader, folder / file, None)
    first = training_rows(reader, folder / file, cache)
    forbid_encoding(reader)
    again = training_rows(reader, folder / file, cache)

    assert in_memory.digest == first.digest == again.digest
    streams = [TaskStream(name, reader, rows, batch_size=4, seed=1) for rows in (in_memory, first, again)]
    for step in range(2 * streams[0].steps_per_epoch + 1):
        expected, *others = [stream.batch(step) for stream in streams]
        assert [differing(batch, expected) for batch in others] == [[], []]


@pytest.mark.parametrize("name", READERS)
@pytest.mark.parametrize("with_targets", [True, False])
def test_a_batch_has_what_the_reader_declares(name: str, folder: Path, with_targets: bool) -> None:
    reader, file = READERS[name](folder)
    rows = reader.encode(list(reader.read(folder / file, with_targets)), with_targets)
    batch = reader.collate(rows, [0, 1], lambda row: generator(0, "test", row))
    has_targets = with_targets or name == "mlm"  # it predicts words that it hides itself
    declared = {**reader.outputs_attr, **(reader.targets_attr if has_targets else {})}
    found = {key: (value.dtype, value.dim()) for key, value in batch.items()}
    assert found == {key: (spec.dtype, len(spec.shape)) for key, spec in declared.items()}


def lengthen(file: Path, times: int) -> None:
    """Write the rows below the header that many times."""
    header, *lines = file.read_text(encoding="utf-8").splitlines()
    file.write_text("\n".join([header, *lines * times]) + "\n", encoding="utf-8")


def key(folder: Path, **settings: Any) -> str | None:
    return key_of(classify(folder, **settings), folder / "cls.tsv")


@pytest.mark.parametrize(
    ("setting", "value"),
    [
        ("max_seq_len", 23),
        ("do_lower_case", True),
        ("for_cn", True),
        ("task_id", 1),
        ("n_classes", 5),
        ("label_map", {"0": 0, "1": 1, "2": 2, "3": 3}),
    ],
)
def test_a_setting_changes_the_key(setting: str, value: Any, folder: Path) -> None:
    assert key(folder, **{setting: value}) != key(folder)


@pytest.mark.parametrize("file", ["cls.tsv", "vocab.txt", "labels.json"])
def test_a_file_of_other_content_changes_the_key_and_its_time_and_place_do_not(
    file: str, folder: Path
) -> None:
    (folder / "labels.json").write_text('{"0": 0, "1": 1, "2": 2, "3": 3}', encoding="utf-8")
    before = key(folder, label_map=folder / "labels.json")
    os.utime(folder / file, (1, 1))
    assert key(folder, label_map=folder / "labels.json") == before

    moved = folder / "moved"
    moved.mkdir()
    for name in ("cls.tsv", "vocab.txt", "labels.json"):
        (moved / name).write_bytes((folder / name).read_bytes())
    assert key(moved, label_map=moved / "labels.json") == before

    with (folder / file).open("a", encoding="utf-8") as handle:
        handle.write({"cls.tsv": "0\tred\n", "vocab.txt": "more\n", "labels.json": "\n"}[file])
    assert key(folder, label_map=folder / "labels.json") != before


def test_the_reader_the_library_and_the_format_change_the_key(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    mlm = MaskLMReader(folder / "vocab.txt", 24)
    match = MatchReader(folder / "vocab.txt", 24)
    keys = {key_of(mlm, folder / "mlm.tsv"), key_of(match, folder / "mlm.tsv"), key(folder)}
    monkeypatch.setattr("tokenizers.__version__", "0.0")
    keys.add(key(folder))
    monkeypatch.setattr(cache_module, "FORMAT", 0)
    keys.add(key(folder))
    assert len(keys) == 5
    assert None not in keys


CUSTOM = """
from palm.reader import ClassifyReader

class Silent(ClassifyReader):
    def __init__(self, vocab_path: str, max_seq_len: int) -> None:
        super().__init__(vocab_path, max_seq_len)

class Spoken(Silent):
    cacheable = True

class Unwritable(Silent):
    cacheable = True

    def __init__(self, vocab_path: str, max_seq_len: int, clean=len) -> None:
        super().__init__(vocab_path, max_seq_len)
"""


def test_a_reader_of_a_users_own_is_cached_only_if_it_says_so_and_its_code_counts(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (folder / "own_readers.py").write_text(CUSTOM, encoding="utf-8")
    monkeypatch.syspath_prepend(str(folder))
    import own_readers  # type: ignore[import-not-found]

    def own(name: str) -> str | None:
        return key_of(getattr(own_readers, name)(str(folder / "vocab.txt"), 24), folder / "cls.tsv")

    assert own("Silent") is None
    assert own("Unwritable") is None  # a function has no form on disk
    before = own("Spoken")
    assert before is not None
    with (folder / "own_readers.py").open("a", encoding="utf-8") as module:
        module.write("# changed\n")
    assert own("Spoken") != before
    with (folder / "vocab.txt").open("a", encoding="utf-8") as vocabulary:
        vocabulary.write("more\n")
    assert own("Spoken") != before


SCRIPT = """
import logging, sys, time
from pathlib import Path
from palm.reader import ClassifyReader
from palm.reader import cache
from palm.core.cache import Cache
from palm.reader.cache import training_rows

cache.REPORT_SECONDS = 0.0
folder, number = Path(sys.argv[1]), sys.argv[2]
logging.basicConfig(stream=sys.stdout, level=logging.INFO, format="%(message)s")
reader = ClassifyReader(folder / "vocab.txt", 24, n_classes=4)
(folder / f"ready{number}").touch()
while not (folder / "go").exists():
    time.sleep(0.002)
rows = training_rows(reader, folder / "cls.tsv", Cache(folder / "cache"))
print(len(rows), rows.digest)
"""


def encoded(folder: Path, number: str) -> tuple[int | None, list[str]]:
    """The exit status of a process that encodes the rows, and the lines that it wrote."""
    own = folder / f"process{number}"
    own.mkdir()
    (own / "encode.py").write_text(SCRIPT, encoding="utf-8")
    status, output = run_script(own / "encode.py", own, str(folder), number)
    return status, output.splitlines()


def test_of_several_processes_that_start_at_once_one_encodes(folder: Path, cache: Cache) -> None:
    lengthen(folder / "cls.tsv", 150)
    with ThreadPoolExecutor() as pool:
        processes = [pool.submit(encoded, folder, str(number)) for number in range(3)]
        while len(list(folder.glob("ready*"))) < 3:
            time.sleep(0.01)
        (folder / "go").touch()
    statuses, outputs = zip(*(process.result() for process in processes), strict=True)

    assert statuses == (0, 0, 0)
    assert len({lines[-1] for lines in outputs}) == 1
    assert outputs[0][-1].startswith("6000 ")
    assert sum("cls.tsv: 4096 rows encoded" in line for lines in outputs for line in lines) == 1
    assert len(entries(cache)) == 1


def truncate(entry: Path) -> None:
    with (entry / "0.values").open("rb+") as file:
        file.truncate(10)


def flip(entry: Path) -> None:
    content = bytearray((entry / "0.values").read_bytes())
    content[5] ^= 1
    (entry / "0.values").write_bytes(content)


def retype(entry: Path) -> None:
    manifest = json.loads((entry / "rows.json").read_text(encoding="utf-8"))
    manifest["columns"]["token_ids"]["values"] = "<u4"
    (entry / "rows.json").write_text(json.dumps(manifest), encoding="utf-8")


@pytest.mark.parametrize(
    "damage",
    [
        truncate,
        flip,
        retype,
        lambda entry: (entry / "1.values").unlink(),
        lambda entry: (entry / "rows.json").write_text("{", encoding="utf-8"),
        lambda entry: (entry / "rows.json").write_text("[]", encoding="utf-8"),
        lambda entry: (entry / "rows.json").unlink(),
    ],
    ids=["cut short", "a bit flipped", "another type", "a file missing", "no JSON", "no object", "no list"],
)
def test_a_damaged_entry_is_rebuilt_and_what_was_changed_is_kept(
    damage: Callable[[Path], None], folder: Path, cache: Cache, caplog: pytest.LogCaptureFixture
) -> None:
    digest = training_rows(classify(folder), folder / "cls.tsv", cache).digest
    damage(entries(cache)[0])
    caplog.clear()

    assert training_rows(classify(folder), folder / "cls.tsv", cache).digest == digest
    messages = [record.getMessage() for record in caplog.records if record.levelno == logging.WARNING]
    assert messages[0].startswith(f"{folder / 'cls.tsv'}: ")
    assert "damaged" in messages[0]
    assert len(messages) == 1 + len(list(cache.folder.glob("*.kept")))

    reader = classify(folder)
    forbid_encoding(reader)
    assert training_rows(reader, folder / "cls.tsv", cache).digest == digest


def test_a_folder_that_cannot_be_written_leaves_the_rows_in_memory_and_says_so(
    folder: Path, caplog: pytest.LogCaptureFixture
) -> None:
    (folder / "taken").write_text("a file", encoding="utf-8")
    rows = training_rows(classify(folder), folder / "cls.tsv", Cache(folder / "taken"))
    assert rows.digest == training_rows(classify(folder), folder / "cls.tsv", None).digest
    [message] = [record.getMessage() for record in caplog.records if record.levelno == logging.WARNING]
    assert message.startswith(f"{folder / 'cls.tsv'}: ")
    assert str(folder / "taken") in message
    assert "data_cache" in message


def test_entries_that_nobody_used_for_a_month_go_when_a_new_one_comes(folder: Path, cache: Cache) -> None:
    for length in (20, 21):
        training_rows(classify(folder, max_seq_len=length), folder / "cls.tsv", cache)
    old = time.time() - (KEPT_DAYS + 1) * 24 * 3600
    foreign = cache.folder / "notes"
    foreign.mkdir()
    for place in cache.folder.iterdir():
        os.utime(place, (old, old))
    training_rows(classify(folder, max_seq_len=21), folder / "cls.tsv", cache)  # used again
    training_rows(classify(folder, max_seq_len=22), folder / "cls.tsv", cache)
    kept = {key(folder, max_seq_len=length) for length in (21, 22)}
    assert {place.name for place in entries(cache)} == {"notes", *kept}


# Rows keep every number of every row, however they are cut and joined.


NUMBERS = st.lists(st.lists(st.integers(0, 2**31 - 1), max_size=5), max_size=6)


def rows_of(lists: list[list[int]]) -> Rows:
    return Rows({"token_ids": Column.ragged(lists), "length": Column.scalar([len(row) for row in lists])})


@given(NUMBERS, NUMBERS)
def test_joined_rows_are_the_rows_of_the_parts(first: list[list[int]], second: list[list[int]]) -> None:
    joined = Rows.concatenate([rows_of(first), rows_of(second)])

    assert [joined["token_ids"][row].tolist() for row in range(len(joined))] == first + second
    assert joined.lengths.tolist() == [len(row) for row in first + second]
    assert joined["length"].values.tolist() == joined.lengths.tolist()
