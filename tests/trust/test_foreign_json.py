"""Mutated JSON files of directories are read or refused; `benchmarks/faults/foreign_json.py` tries 2,000."""

from __future__ import annotations

from pathlib import Path

from benchmarks.faults.foreign_json import trials


def test_mutated_files_of_a_directory_are_read_or_refused_in_little_memory(tmp_path: Path) -> None:
    outcomes, wrong, memory = trials(tmp_path, 80, seed=2, with_library=False)
    assert wrong == []
    assert min(outcomes["read"], outcomes["refused"]) > 10
    assert memory < 1024
