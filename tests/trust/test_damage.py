"""Damaged is damaged: every bit of what describes a saved model or a checkpoint is covered by a checksum."""

from __future__ import annotations

import json
import logging
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import palm
from helpers import saved
from palm.core.errors import StorageError
from palm.core.io import manifest_of, verified_object, verify
from palm.train.checkpoint import NEEDED, newest_checkpoint
from palm.train.model_paths import STATE
from palm.train.saved_model import trained_weights


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return saved.model(tmp_path_factory.mktemp("model"))


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return saved.checkpoint(tmp_path_factory.mktemp("checkpoint"))


def unnoticed(file: Path, open_it: Callable[[], Any], every: int = 1) -> list[tuple[int, int]]:
    """Byte and bit of those flipped bits (of every so many, one) that are not said to be damage."""
    whole, found = file.read_bytes(), []
    try:
        for number in range(0, 8 * len(whole), every):
            damaged = bytearray(whole)
            damaged[number // 8] ^= 1 << number % 8
            file.write_bytes(damaged)
            try:
                open_it()
            except StorageError as error:
                if "is damaged" in str(error):
                    continue
            found.append((number // 8, number % 8))
    finally:
        file.write_bytes(whole)
    return found


# `benchmarks/faults/mutations.py --flips` flips all bits of these.


def test_flipped_bits_of_every_byte_of_a_manifest_are_noticed(model: Path) -> None:
    assert unnoticed(model / "manifest.json", lambda: manifest_of(model), every=3) == []
    assert palm.load_model(model).task == "colour"


def test_flipped_bits_of_a_models_configuration_are_noticed(model: Path) -> None:
    assert unnoticed(model / "config.json", lambda: palm.load_model(model), every=11) == []


def test_flipped_bits_of_a_checkpoints_state_are_noticed(checkpoint: Path) -> None:
    assert unnoticed(checkpoint / STATE, lambda: verified_object(checkpoint, STATE), every=11) == []
    assert unnoticed(checkpoint / STATE, lambda: verify(checkpoint, NEEDED), every=101) == []
    assert trained_weights(checkpoint).heads.keys() == {"cls"}


EMPTY = [b"", b"{}", b"null", b"[]", b"0", b'""', b"\xff", b"[" * 10**6]
EMPTY += [b'{"files": {}}', b'{"files": null, "sha256": null}']


@pytest.mark.parametrize("content", EMPTY)
@pytest.mark.parametrize("name", ["manifest.json", "config.json"])
def test_an_empty_description_is_damage(tmp_path: Path, name: str, content: bytes) -> None:
    folder = saved.model(tmp_path)
    (folder / name).write_bytes(content)
    with pytest.raises(StorageError, match="is damaged: "):
        palm.load_model(folder)


@pytest.mark.parametrize("content", EMPTY)
@pytest.mark.parametrize("name", ["manifest.json", "state.json"])
def test_resuming_passes_over_an_empty_description(
    tmp_path: Path, name: str, content: bytes, caplog: pytest.LogCaptureFixture
) -> None:
    folder = saved.checkpoint(tmp_path)
    assert newest_checkpoint(folder.parent) == folder
    (folder / name).write_bytes(content)
    with caplog.at_level(logging.WARNING, "palm"):
        assert newest_checkpoint(folder.parent) is None
    assert f"ignored: {folder} is damaged: " in caplog.text


@pytest.mark.parametrize("name", ["config.json", "model.safetensors", "vocab.txt", "manifest.json"])
def test_a_file_that_is_missing_is_damage(tmp_path: Path, name: str) -> None:
    folder = saved.model(tmp_path)
    (folder / name).unlink()
    message = "has no manifest.json" if name == "manifest.json" else f"is damaged: {name} is missing"
    with pytest.raises(StorageError, match=message):
        palm.load_model(folder)


@pytest.mark.parametrize("name", ["config.json", "model.safetensors"])
def test_a_manifest_must_list_what_belongs_to_a_model(tmp_path: Path, name: str) -> None:
    folder = saved.model(tmp_path)
    (folder / name).rename(tmp_path / name)
    saved.forge(folder, "more.json", lambda _: {}) if (folder / "more.json").write_text("{}") else None
    (tmp_path / name).rename(folder / name)
    with pytest.raises(StorageError, match=f"manifest.json .*{name}"):
        palm.load_model(folder)


@pytest.mark.parametrize("name", NEEDED)
def test_a_manifest_must_list_what_belongs_to_a_checkpoint(
    tmp_path: Path, name: str, caplog: pytest.LogCaptureFixture
) -> None:
    folder = saved.checkpoint(tmp_path)
    (folder / name).unlink()
    (folder / "more.json").write_text("{}")
    saved.forge(folder, "more.json", lambda _: {})
    assert newest_checkpoint(folder.parent) is None
    assert re.search(rf"manifest\.json .*{name}", caplog.text)


@pytest.mark.parametrize("state", [{}, [], None])
def test_a_whole_state_that_says_nothing_is_passed_over(
    tmp_path: Path, state: Any, caplog: pytest.LogCaptureFixture
) -> None:
    folder = saved.forge(saved.checkpoint(tmp_path), STATE, lambda _: state)
    assert newest_checkpoint(folder.parent) is None
    assert f"ignored: cannot read {folder / STATE}: " in caplog.text


@pytest.mark.parametrize(
    "change",
    [
        lambda _: [],
        saved.in_task(lambda d: {**d, "reader": None}),
        saved.in_task(lambda d: {**d, "batch_size": None}),
        lambda d: {key: value for key, value in d.items() if key != "tasks"},
        lambda d: {**d, "tasks": {}},
        saved.in_task(lambda d: {**d, "paradigm": {"name": "cls", "settings": []}}),
        saved.in_task(lambda d: {**d, "head": "x"}),
        lambda d: {**d, "backbone": {"name": "bert", "settings": {"hidden_size": "4"}}},
    ],
)
def test_a_whole_description_that_fits_nothing_is_an_error_with_its_place(
    tmp_path: Path, change: Any
) -> None:
    folder = saved.forge(saved.model(tmp_path), "config.json", change)
    with pytest.raises(palm.PalmError, match=str(folder)):
        palm.load_model(folder)


def test_a_manifest_shows_sizes_and_checksums_and_the_checksum_of_itself(model: Path) -> None:
    content = json.loads((model / "manifest.json").read_text(encoding="utf-8"))
    assert sorted(content) == ["files", "sha256"]
    expected = ["README.md", "config.json", "heads.safetensors", "model.safetensors", "vocab.txt"]
    assert sorted(content["files"]) == expected
    assert content["files"]["vocab.txt"]["size"] == (model / "vocab.txt").stat().st_size
