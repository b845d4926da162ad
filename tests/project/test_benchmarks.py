"""The programs that measure speed run from end to end, on whatever machine there is."""

from __future__ import annotations

import ast
import importlib
import importlib.util
from contextlib import suppress
from itertools import pairwise
from pathlib import Path

from helpers.loaded import run_script

ROOT = Path(__file__).resolve().parents[2]


HAS_PEER = all(map(importlib.util.find_spec, ("transformers", "accelerate")))


def lines_of(folder: Path, program: str, *words: str) -> list[str]:
    """The lines that a benchmark prints."""
    errors = folder / "errors.txt"
    status, output = run_script(ROOT / "benchmarks" / program, folder, *words, errors=errors)
    assert status == 0, errors.read_text(encoding="utf-8")
    return output.splitlines()


def tables_of(lines: list[str]) -> dict[str, list[list[str]]]:
    """Heading -> the cells of its tables' lines, without those of columns' names."""
    tables: dict[str, list[list[str]]] = {}
    for before, line in pairwise(["", *lines]):
        if line.startswith("### "):
            tables[line[4:]] = []
        if line.startswith("| ") and before.startswith("|"):
            tables[next(reversed(tables))].append([cell.strip() for cell in line.strip("|").split("|")])
    return tables


def _exists(module: str, name: str) -> bool:
    if hasattr(importlib.import_module(module), name):
        return True
    with suppress(ModuleNotFoundError):
        importlib.import_module(f"{module}.{name}")
        return True
    return False


def test_what_programs_import_from_palm_exists() -> None:
    imported = [
        (program.name, node.module, name.name)
        for folder in ("benchmarks", "scripts", "demos")
        for program in sorted((ROOT / folder).rglob("*.py"))
        for node in ast.walk(ast.parse(program.read_text(encoding="utf-8")))
        if isinstance(node, ast.ImportFrom) and (node.module or "").partition(".")[0] == "palm"
        for name in node.names
    ]
    assert len(imported) > 100
    missing = [each for each in imported if not _exists(*each[1:])]
    assert missing == []


def test_the_gpu_benchmark_runs_on_any_machine(tmp_path: Path) -> None:
    lines = lines_of(tmp_path, "gpu.py", "--quick", "--output", str(tmp_path / "report.md"))
    assert (tmp_path / "report.md").read_text(encoding="utf-8").splitlines() == lines
    tables = tables_of(lines)
    correct = {row[0]: row[1:] for row in tables.pop("correctness")}
    assert all(0 <= float(value) < 0.05 for values in correct.values() for value in values)
    # Beside itself, and resumed, a CPU computes the same bits.
    same = [name for name in correct if name.endswith(", fp32") or name.startswith("kernels ")]
    assert len(same) == 6
    assert {value for name in same for value in correct[name]} == {"0.0e+00"}
    assert len(tables) == 8
    for rows in tables.values():
        for name, *cells in (row for row in rows if len(row) == 8):
            runs = not name.startswith("HF") or (HAS_PEER and "Flash" not in name)
            assert (cells[0].isdigit() and int(cells[0]) > 0) if runs else "Error" in cells[0], name
    assert [row[0] for row in tables["tiny, prediction"]][:2] == ["palm", "palm fp32"]
    assert len(tables["tiny, ways to train"]) > 14


def test_the_cpu_benchmark_runs_on_a_tiny_encoder(tmp_path: Path) -> None:
    lines = lines_of(tmp_path, "speed.py", "--shape", "tiny", "--case", "tagging", "mix", "--quick")
    rows = [line.split(" | ")[0] for line in lines if line.startswith("| ")]
    assert rows[:3] == ["|", "| palm", "| palm fp32"]
    assert len(rows) == (9 if HAS_PEER else 3)
    assert any("steps among three tasks took" in line for line in lines)
