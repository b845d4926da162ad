"""A handful of the mutations that `benchmarks/faults/mutations.py` makes of every file that palm reads."""

from __future__ import annotations

import importlib
import logging
import sys
from pathlib import Path
from typing import Any

import pytest

from palm.experiments.grid.folder import GridRun

FAULTS = Path(__file__).resolve().parents[2] / "benchmarks" / "faults"
COUNT = 9
"""Mutations of each of the 30 formats."""


@pytest.fixture
def program(monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.syspath_prepend(FAULTS)
    monkeypatch.setenv("TOKENIZERS_PARALLELISM", "false")
    module = importlib.import_module("mutations")
    yield module
    logging.disable(logging.NOTSET)
    for name in ("mutations", "samples", "written", "tiny_run"):
        del sys.modules[name]


@pytest.mark.skipif(sys.platform != "linux", reason="memory is limited as Linux does it")
def test_damaged_files_of_every_format_are_a_result_or_an_error_of_palm(tmp_path: Path, program: Any) -> None:
    made = program.samples(tmp_path)
    logging.disable(logging.CRITICAL)
    tallies = {sample.name: program.tally(sample, COUNT, seed=7) for sample in made}
    assert len(tallies) == 30
    assert {name: one.faults for name, one in tallies.items() if one.faults} == {}
    assert all(one.outcomes.total() == COUNT for one in tallies.values())
    assert sum(one.outcomes["palm error"] for one in tallies.values()) > 180


@pytest.mark.skipif(sys.platform != "linux", reason="memory is limited as Linux does it")
def test_damage_of_what_commands_wrote_is_a_result_or_an_error_of_palm(tmp_path: Path, program: Any) -> None:
    """The journal of a stopped prediction, and the folder of a grid's run."""
    written = sys.modules["written"]
    logging.disable(logging.CRITICAL)
    grid = written.Grid(tmp_path / "grid")
    grid.prepare(run := GridRun("0000", {"global": {}, "tasks": {}, "backbone": {}}))
    read = {"job": lambda: grid.job("0000"), "open": lambda: grid.check([run])}
    made = [written.stopped_prediction(tmp_path / "stopped"), written.Written("sweep", grid.path, read)]
    tallies = {one.name: program.tally(one, 9, seed=7) for each in made for one in each.samples()}
    assert len(tallies) > 3
    assert {name: one.faults for name, one in tallies.items() if one.faults} == {}
    assert sum(one.outcomes["palm error"] for one in tallies.values()) > 9


def test_the_program_notices_faults(tmp_path: Path, program: Any) -> None:
    """Another exception, a process that dies, more memory than is there, other values under a checksum."""
    file = tmp_path / "a"
    file.write_bytes(b"a" * 16)

    def read() -> Any:
        data = file.read_bytes()
        if len(data) < 16:
            raise KeyError("short")
        if len(data) > 16:
            program.os._exit(3)
        if data[:8] != b"a" * 8:
            return bytearray(2 << 30)
        return data

    found = program.tally(program.Sample("test", file, read, is_covered=True), 60, seed=0)
    words = " ".join(why for _, why in found.faults)
    assert all(
        word in words for word in ("KeyError: 'short'", "the process died", "MemoryError", "under a checksum")
    )
    assert found.outcomes["right result"] > 0
    assert file.read_bytes() == b"a" * 16
