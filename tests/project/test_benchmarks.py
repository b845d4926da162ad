"""The programs that measure speed run from end to end, on whatever machine there is."""

from __future__ import annotations

import importlib.util
import json
from itertools import pairwise
from pathlib import Path

import pytest

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


@pytest.mark.skipif(not importlib.util.find_spec("transformers"), reason="compares with transformers")
def test_the_comparison_over_seeds_runs_on_a_tiny_encoder(tmp_path: Path) -> None:
    from transformers import BertConfig, BertForSequenceClassification

    words = ["good", "bad", "film", "book"]
    (tmp_path / "vocab.txt").write_text("\n".join(["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *words]))
    sizes = {"hidden_size": 8, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 16}
    BertForSequenceClassification(BertConfig(vocab_size=9, **sizes)).save_pretrained(tmp_path)
    (tmp_path / "data" / "sst2").mkdir(parents=True)
    rows = "label\ttext_a\n" + "1\tgood film\n0\tbad book\n" * 4
    for name in ("train", "dev", "test"):
        (tmp_path / "data" / "sst2" / f"{name}.tsv").write_text(rows)
    told = ("--model", str(tmp_path), "--data", str(tmp_path / "data"), "--tasks", "sst2")
    lines = lines_of(
        tmp_path, "dropout_accuracy.py", *told, "--seeds", "1", "2", "--epochs", "1", "--batch_size", "4"
    )
    assert [json.loads(line)["program"] for line in lines[:4]] == ["palm", "hugging_face"] * 2
    assert lines[-1].startswith("| sst2 | ")
    assert lines[-1].endswith(" of 2 |")


def test_the_benchmark_of_growth_runs_on_a_few_tasks_and_rows(tmp_path: Path) -> None:
    lines = [line for line in lines_of(tmp_path, "growth.py", "--quick") if line.startswith("| ")]
    table = [[cell.strip() for cell in line.strip("|").split("|")] for line in lines]
    runs = [("1", "2,000", "first"), ("1", "2,000", "second"), ("3", "2,000", "second")]
    assert [tuple(row[:3]) for row in table[1:]] == [*runs, ("1", "4,000", "first"), ("1", "4,000", "second")]
    # A task more is a head more: 2 classes of 32 features and their biases.
    parameters = [int(row[9].replace(",", "")) for row in table[1:]]
    assert parameters[2] - parameters[1] == 2 * (2 * 32 + 2)


def test_the_benchmark_of_large_predictions_runs_on_small_ones(tmp_path: Path) -> None:
    rows = [line.split(" | ")[0] for line in lines_of(tmp_path, "growth_predict.py", "--rows", "300", "600")]
    assert rows == ["| rows", "|---|---|---|---|---|", "| 300", "| 600"]
