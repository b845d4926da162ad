"""Damaged files of every kind are read, or are an error of palm: no other exception leaves a reader."""

from __future__ import annotations

import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import palm
from benchmarks.faults.foreign_json import trials
from helpers import saved, tiny
from palm.config import read_config
from palm.core.io import seal
from palm.reader import ClassifyReader
from palm.report.inspection import inspect_directory
from palm.report.run import read_run

COUNT = 60


def mutated(data: bytes, draw: random.Random) -> bytes:
    """Flip a bit, cut the end off, delete or repeat a span, or put a huge number in."""
    at = draw.randrange(len(data))
    span = draw.randrange(1, 30)
    return draw.choice(
        [
            data[:at] + bytes([data[at] ^ 1 << draw.randrange(8)]) + data[at + 1 :],
            data[:at],
            data[:at] + data[at + span :],
            data[:at] + data[at : at + span] * 2 + data[at + span :],
            data[:at] + draw.choice([b"-1", b"9" * 30, b"null", b"[", b"{", b"\x00", b"\xff"]) + data[at:],
        ]
    )


def resealed(read: Callable[[Path], Any]) -> Callable[[Path], Any]:
    """Read a directory whose manifest is made anew, as by somebody who forges it."""

    def reread(file: Path) -> Any:
        (file.parent / "manifest.json").unlink()
        seal(file.parent)
        return read(file.parent)

    return reread


def read_rows(file: Path) -> list[Any]:
    return list(ClassifyReader(file.parent / "vocab.txt", 8).read(file, with_targets=True))


READS: dict[str, Callable[[Path], Any]] = {
    "model/config.json": resealed(palm.load_model),
    "model/model.safetensors": resealed(palm.load_model),
    "model/vocab.txt": resealed(palm.load_model),
    "model/manifest.json": lambda file: palm.load_model(file.parent),
    "out/step_1/state.json": resealed(inspect_directory),
    "run/history.jsonl": lambda file: read_run(file.parent),
    "run/resolved_config.yaml": lambda file: read_run(file.parent),
    "config.yaml": lambda file: read_config(file, argv=[]),
    "cls.tsv": read_rows,
}


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("files")
    saved.model(folder)
    saved.checkpoint(folder)
    given = tiny.config(folder, "cls", num_hidden_layers=1, num_epochs=0.2, save_path=str(folder / "run"))
    palm.Controller(given, argv=[]).train()
    (folder / "config.yaml").write_bytes((folder / "run" / "resolved_config.yaml").read_bytes())
    return folder


@pytest.mark.parametrize("name", READS)
def test_a_damaged_file_is_read_or_an_error_of_palm(files: Path, name: str) -> None:
    file = files / name
    whole = file.read_bytes()
    draw = random.Random(name)
    errors = 0
    try:
        for _ in range(COUNT):
            file.write_bytes(mutated(whole, draw))
            try:
                READS[name](file)
            except palm.PalmError:
                errors += 1
    finally:
        file.write_bytes(whole)
    assert errors > 0
    READS[name](file)


# Mutated JSON files of directories are read or refused; `benchmarks/faults/foreign_json.py` tries 2,000.


def test_mutated_files_of_a_directory_are_read_or_refused_in_little_memory(tmp_path: Path) -> None:
    outcomes, wrong, memory = trials(tmp_path, 80, seed=2, with_library=False)
    assert wrong == []
    assert min(outcomes["read"], outcomes["refused"]) > 10
    assert memory < 1024
