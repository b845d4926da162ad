"""Files and directories appear whole or not at all, and a directory replaces only what palm wrote."""

from __future__ import annotations

import errno
import multiprocessing
import os
import re
import sys
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor, ThreadPoolExecutor
from pathlib import Path

import pytest
from safetensors import SafetensorError

from helpers.faults import die_removing, die_replacing, fill, names
from palm.core.errors import StorageError
from palm.core.io import (
    check_not_read,
    check_target,
    foreign_files,
    keep_foreign,
    new_directory,
    remove_stale,
    verify,
    wrap_write_errors,
    write_text,
)

POSIX = pytest.mark.skipif(sys.platform == "win32", reason="fork")


def test_a_folder_appears_with_a_manifest_and_leaves_nothing_beside_it(tmp_path: Path) -> None:
    fill(tmp_path / "model", "1")
    verify(tmp_path / "model")
    assert names(tmp_path) == ["model"]
    assert foreign_files(tmp_path / "model") == []


@POSIX
def test_everything_in_a_folder_is_on_the_disk_before_its_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    model, flushed = tmp_path / "model", []

    def note(number: int) -> None:
        flushed.append((os.fstat(number).st_ino, model.exists()))

    monkeypatch.setattr(os, "fsync", note)
    fill(model, "1")
    within = {(place.stat().st_ino, False) for place in (model, *model.rglob("*"))}
    assert {*flushed} == {*within, (tmp_path.stat().st_ino, True)}  # the name itself, at last
    write_text(tmp_path / "file", "1")
    assert ((tmp_path / "file").stat().st_ino, True) in flushed


def test_a_folder_with_files_of_others_is_never_replaced(tmp_path: Path) -> None:
    home = tmp_path / "home"
    (home / "project").mkdir(parents=True)
    for name in ("a.py", "b.py", "c.py"):
        (home / "project" / name).write_text("mine", encoding="utf-8")
    for overwrite in (False, True):
        with pytest.raises(StorageError, match=r"home .*\(project, proj.*and 1 more\)"):
            fill(home, "1", overwrite)
    assert names(tmp_path) == ["home"]


def test_what_palm_wrote_is_replaced_when_asked(tmp_path: Path) -> None:
    fill(tmp_path / "model", "1")
    with pytest.raises(StorageError, match=r"model .*--overwrite"):
        fill(tmp_path / "model", "2")
    assert (tmp_path / "model" / "a.txt").read_text(encoding="utf-8") == "1"
    fill(tmp_path / "model", "2", overwrite=True)
    assert (tmp_path / "model" / "a.txt").read_text(encoding="utf-8") == "2"
    assert names(tmp_path) == ["model"]


@pytest.mark.parametrize("file", ["sub/notes.md", "a.txt", "empty/"])
def test_a_foreign_or_changed_file_is_named_and_a_run_puts_it_aside(tmp_path: Path, file: str) -> None:
    model = tmp_path / "model"
    fill(model, "1")
    if file.endswith("/"):
        (model / file).mkdir()
    else:
        (model / file).write_text("mine", encoding="utf-8")
    with pytest.raises(StorageError, match=rf"model .*\({re.escape(file.rstrip('/'))}\)"):
        fill(model, "2", overwrite=True)
    keep_foreign(model)
    fill(model, "2", overwrite=True)
    assert names(tmp_path) == ["model", "model.previous"]
    assert (tmp_path / "model.previous" / file).exists()
    keep_foreign(model)  # all palm's
    assert names(tmp_path) == ["model", "model.previous"]


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
    for name in ("file", "link"):
        with pytest.raises(StorageError, match=f"{name} is a {name}"):
            check_target(tmp_path / name, overwrite=True)


def test_an_empty_folder_may_be_filled_and_a_failure_leaves_it_empty(tmp_path: Path) -> None:
    (tmp_path / "model").mkdir()
    with pytest.raises(StorageError, match=r"No such file .*none"), new_directory(tmp_path / "model") as part:
        (part / "half").write_text((tmp_path / "none").read_text(encoding="utf-8"), encoding="utf-8")
    assert names(tmp_path) == ["model"]
    assert names(tmp_path / "model") == []
    fill(tmp_path / "model", "1")
    verify(tmp_path / "model")


@POSIX
@pytest.mark.parametrize("die", [die_replacing, die_removing])
def test_a_process_that_dies_at_any_call_leaves_whole_folders(
    tmp_path: Path, die: Callable[[Path], None]
) -> None:
    # A process without PyTorch, whose copies are cheap.
    with ProcessPoolExecutor(1, multiprocessing.get_context("spawn")) as small_process:
        small_process.submit(die, tmp_path).result()


@POSIX
def test_an_error_while_a_folder_is_replaced_puts_the_old_one_back(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fill(tmp_path / "model", "1")
    rename = Path.rename

    def refuse(path: Path, new: Path) -> Path:
        if path.suffix == ".part":
            raise OSError(errno.EIO, os.strerror(errno.EIO))
        return rename(path, new)

    monkeypatch.setattr(Path, "rename", refuse)
    with pytest.raises(StorageError, match="model: the disk reports an error"):
        fill(tmp_path / "model", "2", overwrite=True)
    assert (tmp_path / "model" / "a.txt").read_text(encoding="utf-8") == "1"
    assert names(tmp_path) == ["model"]


def test_only_what_dead_processes_left_is_removed(tmp_path: Path) -> None:
    with new_directory(tmp_path / "live") as part:
        host, _, process = part.name.removeprefix(".live.").removesuffix(".part").partition("-")
        users = [".model.17.part", ".model.swp", "model.part", ".model.old", f".a.{host}x-18.part"]
        for name in (*users, f".a.{host}-{'9' * 30}.part", f".b.{host}-{process}.part"):
            (tmp_path / name).write_text("x", encoding="utf-8")
        (tmp_path / f".c.{host}-{'9' * 30}.old").mkdir()  # of a process that died between two renames
        remove_stale(tmp_path)
        assert names(tmp_path) == sorted([*users, "c", part.name])
    remove_stale(tmp_path, is_locked=True)  # no other host either
    assert names(tmp_path) == sorted([*users[:-1], "c", "live"])


def test_two_threads_do_not_write_to_the_same_path(tmp_path: Path) -> None:
    with new_directory(tmp_path / "model") as part:
        (part / "weights").write_text("1", encoding="utf-8")
        with ThreadPoolExecutor(1) as pool:
            error = pool.submit(fill, tmp_path / "model", "2").exception(60)
    assert isinstance(error, StorageError)
    assert names(tmp_path / "model") == ["manifest.json", "weights"]


@pytest.mark.parametrize(
    ("number", "words"),
    [
        (errno.ENOSPC, "cannot write a/b: the disk is full; free some space"),
        (errno.EROFS, "cannot write a/b: the file system is read-only; mount it for writing"),
        (errno.ENOTDIR, r"cannot write a/b: Not a directory; give a folder that can be written"),
    ],
)
def test_what_the_system_refuses_is_explained(number: int, words: str) -> None:
    with pytest.raises(StorageError, match=words), wrap_write_errors(Path("a/b")):
        raise OSError(number, os.strerror(number))


def test_a_full_disk_is_recognised_behind_safetensors() -> None:
    error = SafetensorError("Error while serializing: I/O error: No space left on device (os error 28)")
    with pytest.raises(StorageError, match=r"write w: .*disk is full"), wrap_write_errors(Path("w")):
        raise error


@POSIX
def test_what_is_not_a_file_is_not_replaced(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(StorageError, match="pipe is not a regular file"):
        write_text(tmp_path / "pipe", "1")


def test_an_output_that_contains_an_input_is_refused(tmp_path: Path) -> None:
    (tmp_path / "data").mkdir()
    (tmp_path / "data" / "a.tsv").touch()
    with pytest.raises(StorageError, match=r"a\.tsv"):
        check_not_read(tmp_path / "data", [tmp_path / "data" / "a.tsv", None])
    check_not_read(tmp_path / "data" / "b.tsv", [tmp_path / "data" / "a.tsv"])
