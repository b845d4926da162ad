"""Folders that appear whole, never absent meanwhile, and in place of nothing that palm did not write."""

from __future__ import annotations

import errno
import multiprocessing
import os
import re
import shutil
import sys
from collections.abc import Iterator
from concurrent.futures import Executor, ProcessPoolExecutor
from pathlib import Path

import pytest
from safetensors import SafetensorError

from helpers.faults import (
    die_clearing,
    die_discarding,
    die_linking,
    die_replacing,
    fill,
    names,
    sealed,
)
from palm.core.errors import StorageError
from palm.core.files import door, fs
from palm.core.files.atomic_dir import (
    check_target,
    foreign_files,
    link_equal_weights,
    linked_copy,
    new_directory,
    remove_directory,
    remove_stale,
)
from palm.core.files.fs import OLD, UNFINISHED, WRITTEN, recover, stage_name, write_text
from palm.core.files.manifest import verify
from palm.core.files.write_errors import wrap_write_errors
from palm.reader.predictions import write_records

POSIX = pytest.mark.skipif(sys.platform == "win32", reason="fork")


@pytest.fixture(scope="module")
def small_process() -> Iterator[Executor]:
    """A process without PyTorch, whose copies are cheap."""
    with ProcessPoolExecutor(1, multiprocessing.get_context("spawn")) as executor:
        yield executor


def test_a_folder_appears_with_a_manifest_and_leaves_nothing_beside_it(tmp_path: Path) -> None:
    fill(tmp_path / "model", "1")
    verify(tmp_path / "model")
    assert names(tmp_path) == ["model"]
    assert foreign_files(tmp_path / "model") == []


def test_a_folder_with_files_of_others_is_never_replaced(tmp_path: Path) -> None:
    home = tmp_path / "home"
    (home / "project").mkdir(parents=True)
    for name in ("a.py", "b.py", "c.py"):
        (home / "project" / name).write_text("mine", encoding="utf-8")
    for overwrite in (False, True):
        with pytest.raises(StorageError, match=r"home .*\(project, proj.*and 1 more\)"):
            fill(home, "1", overwrite)
    assert (home / "project" / "a.py").read_text(encoding="utf-8") == "mine"
    assert names(tmp_path) == ["home"]


def test_what_palm_wrote_is_replaced_when_asked(tmp_path: Path) -> None:
    fill(tmp_path / "model", "1")
    with pytest.raises(StorageError, match=r"model .*--overwrite"):
        fill(tmp_path / "model", "2")
    assert (tmp_path / "model" / "a.txt").read_text(encoding="utf-8") == "1"
    fill(tmp_path / "model", "2", overwrite=True)
    assert (tmp_path / "model" / "a.txt").read_text(encoding="utf-8") == "2"
    assert names(tmp_path) == ["model"]


def test_a_foreign_file_among_palms_own_is_named_and_stays(tmp_path: Path) -> None:
    fill(tmp_path / "model", "1")
    (tmp_path / "model" / "sub" / "notes.md").write_text("mine", encoding="utf-8")
    with pytest.raises(StorageError, match=r"model .*\(sub/notes\.md\)"):
        fill(tmp_path / "model", "2", overwrite=True)
    assert (tmp_path / "model" / "a.txt").read_text(encoding="utf-8") == "1"
    remove_directory(tmp_path / "model")
    assert (tmp_path / "model" / "sub" / "notes.md").read_text(encoding="utf-8") == "mine"


@pytest.mark.parametrize("act", ["replace", "remove"])
@pytest.mark.parametrize("can_exchange", [True, False])
def test_a_file_that_is_added_after_the_last_check_is_kept(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, act: str, can_exchange: bool
) -> None:
    fill(tmp_path / "model", "1")
    rename = door.rename
    exchange = door.exchange

    def add(*names: Path) -> None:
        if tmp_path / "model" in names:
            (tmp_path / "model" / "notes.md").write_text("mine", encoding="utf-8")

    def rename_later(path: Path, new: Path) -> None:
        add(path)
        rename(path, new)

    def exchange_later(one: Path, other: Path) -> bool:
        add(one, other)
        return can_exchange and exchange(one, other)

    for module in (door, fs):
        monkeypatch.setattr(module, "rename", rename_later)
        monkeypatch.setattr(module, "exchange", exchange_later)
    if act == "remove":
        remove_directory(tmp_path / "model")
    else:
        fill(tmp_path / "model", "2", overwrite=True)
    assert (tmp_path / "model.kept" / "notes.md").read_text(encoding="utf-8") == "mine"
    assert (tmp_path / "model.kept" / "a.txt").read_text(encoding="utf-8") == "1"
    assert names(tmp_path) == (["model", "model.kept"] if act == "replace" else ["model.kept"])


@POSIX
def test_a_process_that_dies_while_it_links_weights_leaves_both_folders_whole(
    tmp_path: Path, small_process: Executor
) -> None:
    small_process.submit(die_linking, tmp_path).result()


def test_a_temporary_name_in_a_folder_is_not_palms_own(tmp_path: Path) -> None:
    fill(tmp_path / "model", "1")
    (tmp_path / "model" / ".notes.txt.123.part").write_text("mine", encoding="utf-8")
    assert foreign_files(tmp_path / "model") == [".notes.txt.123.part"]


def test_a_process_number_that_no_system_has_is_that_of_a_dead_one(tmp_path: Path) -> None:
    left = stage_name(tmp_path / "model")
    left = left.with_name(left.name.replace(str(os.getpid()), "9" * 30))
    left.mkdir()
    (left / UNFINISHED).touch()
    fill(tmp_path / "model", "1")
    assert names(tmp_path) == ["model"]


@pytest.mark.parametrize("manifest", ["", "null", "[]", '{"a.txt": 1}'])
def test_a_folder_without_a_readable_manifest_is_not_palms(tmp_path: Path, manifest: str) -> None:
    fill(tmp_path / "model", "1")
    (tmp_path / "model" / "manifest.json").write_text(manifest, encoding="utf-8")
    with pytest.raises(StorageError, match=r"model .*a\.txt"):
        check_target(tmp_path / "model", overwrite=True)


@pytest.mark.parametrize("place", [".", "/", "..", "sub/.."])
def test_a_path_that_names_no_folder_of_its_own_is_refused(place: str) -> None:
    with pytest.raises(StorageError, match=re.escape(repr(str(Path(place))))):
        check_target(Path(place), overwrite=True)


@POSIX
def test_a_file_and_a_link_are_refused(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("mine", encoding="utf-8")
    (tmp_path / "link").symlink_to(tmp_path / "elsewhere")
    with pytest.raises(StorageError, match="file is a file"):
        check_target(tmp_path / "file", overwrite=True)
    with pytest.raises(StorageError, match=r"link .*elsewhere"):
        check_target(tmp_path / "link", overwrite=True)


def test_an_empty_folder_may_be_filled_and_a_failure_leaves_it_empty(tmp_path: Path) -> None:
    (tmp_path / "model").mkdir()
    with (
        pytest.raises(StorageError, match=r"No such file .*none"),
        new_directory(tmp_path / "model") as part,
    ):
        (part / "half").write_text((tmp_path / "none").read_text(encoding="utf-8"), encoding="utf-8")
    assert names(tmp_path) == ["model"]
    assert names(tmp_path / "model") == []
    fill(tmp_path / "model", "1")
    verify(tmp_path / "model")


@POSIX
@pytest.mark.parametrize("exchanges", [True, False])
def test_a_process_that_dies_at_any_call_leaves_the_old_folder_or_the_new_one(
    tmp_path: Path, small_process: Executor, exchanges: bool
) -> None:
    small_process.submit(die_replacing, tmp_path, exchanges).result()


def test_an_error_is_reported_where_the_unfinished_folder_is_gone(tmp_path: Path) -> None:
    def fail() -> None:
        with new_directory(tmp_path / "model") as part:
            shutil.rmtree(part)
            raise KeyError("mine")

    with pytest.raises(KeyError, match="mine"):
        fail()
    assert names(tmp_path) == []


@POSIX
def test_a_process_that_dies_while_it_clears_up_leaves_what_the_next_one_clears(
    tmp_path: Path, small_process: Executor
) -> None:
    small_process.submit(die_clearing, tmp_path).result()


@POSIX
def test_a_process_that_dies_while_discarding_leaves_the_whole_folder_or_none(
    tmp_path: Path, small_process: Executor
) -> None:
    small_process.submit(die_discarding, tmp_path).result()


@POSIX
def test_a_reader_puts_back_what_was_moved_aside(tmp_path: Path) -> None:
    fill(tmp_path / "model", "1")
    for name in (".model.node1-17.part", ".model.node1-18.part"):  # only the second has palm's mark
        (tmp_path / name / OLD).mkdir(parents=True)
    (tmp_path / name / UNFINISHED).touch()
    (tmp_path / name / OLD).rmdir()
    (tmp_path / "model").rename(tmp_path / name / OLD)
    verify(tmp_path / "model")
    assert names(tmp_path / name) == [UNFINISHED]
    recover(tmp_path / "model")  # nothing to do


@POSIX
def test_a_stage_that_is_a_link_gives_nothing_back(tmp_path: Path) -> None:
    (tmp_path / "other" / OLD).mkdir(parents=True)
    (tmp_path / "other" / UNFINISHED).touch()
    (tmp_path / ".model.node1-17.part").symlink_to(tmp_path / "other")
    recover(tmp_path / "model")
    assert names(tmp_path / "other") == sorted([OLD, UNFINISHED])


@POSIX
def test_an_interrupt_while_the_old_folder_is_moved_aside_puts_it_back(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fill(tmp_path / "model", "1")
    rename = os.replace

    def interrupted(old: str, new: str, **folders: int) -> None:
        if old == new == "model":  # from the stage to its place
            raise KeyboardInterrupt
        rename(old, new, **folders)

    monkeypatch.setattr(door, "_renameat2", lambda: None)
    monkeypatch.setattr(os, "replace", interrupted)
    with pytest.raises(KeyboardInterrupt):
        fill(tmp_path / "model", "2", overwrite=True)
    assert (tmp_path / "model" / "a.txt").read_text(encoding="utf-8") == "1"
    assert names(tmp_path) == ["model"]


def test_sweeping_removes_only_what_palm_left(tmp_path: Path) -> None:
    users = [
        ".model.node1-17.part",
        ".model.17.part",
        ".other.17.part",
        ".model.swp",
        "model.part",
        ".model.old",
    ]
    for name in users:
        (tmp_path / name).write_text("x", encoding="utf-8")
    for name, mark in ((".model.node2-18.part", "half"), (".model.node2-19.part", UNFINISHED)):
        (tmp_path / name).mkdir()
        (tmp_path / name / mark).write_text("x", encoding="utf-8")
    (tmp_path / ".model.node2-20.part").mkdir()  # a process died before it put its mark there
    (tmp_path / ".model.node2-21.part").symlink_to(tmp_path / ".model.node2-19.part")
    remove_stale(tmp_path, lambda name: name == "model")
    assert names(tmp_path) == sorted([*users, ".model.node2-18.part", ".model.node2-21.part"])


@pytest.mark.parametrize(
    ("number", "words"),
    [
        (errno.ENOSPC, "cannot write a/b: the disk is full; free some space"),
        (errno.EROFS, "cannot write a/b: the file system is read-only; mount it for writing"),
        (errno.EIO, "cannot write a/b: the disk reports an error"),
        (errno.ENOTDIR, r"cannot write a/b: Not a directory; give a folder that can be written"),
    ],
)
def test_what_the_system_refuses_is_explained(number: int, words: str) -> None:
    with pytest.raises(StorageError, match=words), wrap_write_errors(Path("a/b")):
        raise OSError(number, os.strerror(number))


def test_a_full_disk_is_recognised_behind_safetensors() -> None:
    error = SafetensorError("Error while serializing: I/O error: No space left on device (os error 28)")
    with (
        pytest.raises(StorageError, match=r"write w: .*disk is full"),
        wrap_write_errors(Path("w")),
    ):
        raise error


def test_a_text_that_cannot_be_written_leaves_the_one_before(tmp_path: Path) -> None:
    write_text(tmp_path / "note", "1")
    with pytest.raises(StorageError, match="cannot write"):
        write_text(tmp_path / "none" / "note", "2")
    assert (tmp_path / "note").read_text(encoding="utf-8") == "1"
    assert names(tmp_path) == [WRITTEN, "note"]


def test_a_disk_that_turns_read_only_is_reported_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: object, **__: object) -> None:
        raise OSError(errno.EROFS, os.strerror(errno.EROFS))

    records = ({"index": number} for number in range(3))
    monkeypatch.setattr(os, "fsync", refuse)
    for name in ("replace", "unlink"):
        monkeypatch.setattr(os, name, refuse)
    with pytest.raises(StorageError, match=r"note: .*read-only"):
        write_text(tmp_path / "note", "1")
    with pytest.raises(StorageError, match=r"predictions\.json: .*read-only"):
        write_records(records, tmp_path)


def test_a_linked_copy_shares_weights_and_copies_what_people_edit(tmp_path: Path) -> None:
    source = sealed(tmp_path / "one", b"weights")
    linked_copy(source, tmp_path / "two")
    verify(tmp_path / "two")
    same = [(source / name).samefile(tmp_path / "two" / name) for name in ("model.safetensors", "README.md")]
    assert same == [True, False]
    with new_directory(source, overwrite=True) as part:  # a new model in its place leaves the copy alone
        (part / "model.safetensors").write_bytes(b"others")
    assert (tmp_path / "two" / "model.safetensors").read_bytes() == b"weights"


def test_equal_weights_become_one_file_and_damaged_ones_never(tmp_path: Path) -> None:
    one, two, other = (sealed(tmp_path / name, content) for name, content in
                       (("one", b"same"), ("two", b"same"), ("other", b"else")))  # fmt: skip
    (one / "model.safetensors").write_bytes(b"sane")
    link_equal_weights(two, [other, one, tmp_path / "nothing", two])
    assert (two / "model.safetensors").read_bytes() == b"same"
    assert not (two / "model.safetensors").samefile(one / "model.safetensors")
    (one / "model.safetensors").write_bytes(b"same")
    link_equal_weights(two, [other, one, tmp_path / "nothing", two])
    assert (two / "model.safetensors").samefile(one / "model.safetensors")
    verify(two)


def test_where_there_are_no_links_weights_are_copied(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object, **__: object) -> None:
        raise OSError(95, "not supported")

    monkeypatch.setattr(os, "link", refuse)
    linked_copy(sealed(tmp_path / "one", b"weights"), tmp_path / "two")
    assert verify(tmp_path / "two")
    assert not (tmp_path / "two" / "model.safetensors").samefile(tmp_path / "one" / "model.safetensors")
