"""The page and the picture of a comparison have its numbers, and run nothing."""

from __future__ import annotations

import json
import re
import shutil
from pathlib import Path
from typing import Any

import pytest

import palm
from helpers.messages import raises
from palm.core.errors import StorageError
from palm.core.io import write_json


def comparison() -> dict[str, Any]:
    scores = {"per_seed": [0.91, 0.93], "mean": 0.92, "deviation": 0.0141}
    way = {"name": "together", "tasks": ["slot", "<b>mlm"], "steps": {"slot": 40}, "updates": 60}
    way |= {"seconds": 3.0, "runs": [], "scores": {"slot": scores}}
    difference = {"mean": 1.25, "standard_error": 0.4, "seed_error": 0.3, "row_error": 0.26, "low": -3.8}
    difference |= {"high": 6.3, "p_value": 0.2, "per_seed": [1.0]}
    return {
        "format": "palm-comparison",
        "version": 4,
        "equal": "Equal target steps: slot 40 in every variant; in total: together 60, alone-slot 40.",
        "seeds": [1, 2],
        "tests": {
            "slot": {"file": "test.tsv", "metric": "entity_f1", "rows": 893, "model": "best", "is_dev": False}
        },
        "ways": [way, {**way, "name": "alone-slot"}],
        "answers": [
            {"target": "slot", "way": "together", "against": "alone-slot", "unit": "points of entity_f1",
             "difference": difference, "comparisons": 1, "p_corrected": 0.2, "verdict": "undecided"}
        ],
        "verdicts": {"slot": "slot: together and alone: undecided (-3.8 to +6.3)"},
        "auxiliaries": {"<b>mlm": {"slot": "undecided"}},
    }  # fmt: skip


def test_the_page_has_verdicts_scores_and_differences(tmp_path: Path) -> None:
    pytest.importorskip("altair", reason="the extra report is not installed")
    write_json(tmp_path / "compare.json", comparison())
    text = palm.write_report(tmp_path).read_text(encoding="utf-8")
    assert "together and alone: undecided (\u22123.8 to +6.3)" in text
    assert "<b>0.9200</b> ± 0.0141" in text
    assert "<b>+1.25</b> points of entity_f1" in text
    assert "−3.80 to +6.30" in text
    assert "slot, &lt;b&gt;mlm" in text
    assert "<b>mlm" not in text
    assert 'slot: together \u2212 alone</td><td class="n">1.25</td><td class="n">\u22123.8</td>' in text


def test_a_comparison_of_another_version_is_reported(tmp_path: Path) -> None:
    write_json(tmp_path / "compare.json", {**comparison(), "version": 1})
    with pytest.raises(StorageError, match=r"compare\.json.*palm compare"):
        palm.write_report(tmp_path)


def test_a_comparison_among_runs_is_named_and_not_taken_for_all(tmp_path: Path, run: Path) -> None:
    write_json(tmp_path / "compare.json", comparison())
    for folders in ([tmp_path, run], [run, tmp_path]):
        with raises(StorageError, str(tmp_path / "history.jsonl")):
            palm.write_report(folders)


def test_runs_of_a_sweep_are_named_by_what_was_tried_and_those_of_a_comparison_are_in_its_order(
    tmp_path: Path, run: Path
) -> None:
    pytest.importorskip("altair", reason="the extra report is not installed")

    def shown(kind: str, found: dict[str, Any], *runs: str) -> tuple[list[str], list[str], list[str]]:
        for name in runs:
            out = Path(shutil.copytree(run, tmp_path / kind / "runs" / name / "out"))
            config = out / "resolved_config.yaml"
            text = config.read_text(encoding="utf-8").replace("global:\n", f"global:\n  way: {name}\n", 1)
            config.write_text(text, encoding="utf-8")
        write_json(tmp_path / kind / f"{kind}.json", found)
        text = palm.write_report(tmp_path / kind).read_text(encoding="utf-8")
        table = text.partition('id="runs"')[2].partition("</table>")[0]
        (legend,) = set(re.findall(r'"color": .*?"domain": (\[.*?\])', text))
        heads = re.findall(r'<th scope="col"[^>]*>(.*?)</th>', table)
        return re.findall(r'<th scope="row"><span[^>]*>(.*?)</span>', table), heads, json.loads(legend)

    trials = [{"run": f"000{k}", "values": {"learning_rate": rate}} for k, rate in enumerate((0.1, 0.2))]
    found = {"best": "0001", "ties": [], "trials": trials}
    rows, heads, legend = shown("sweep", found, "0000", "0001")
    assert (rows, heads[5:8]) == (["0000", "0001"], ["learning_rate", "steps", "time"])
    assert legend == ["0000: 0.1", "0001: 0.2"]
    page = (tmp_path / "sweep" / "report.html").read_text(encoding="utf-8")
    assert "the best is <code>0001</code>, with learning_rate 0.2; train it" in page
    names = ("alone-slot-seed1-5e6f", "together-seed1-1a2b")
    found = comparison()
    for way, name in zip(found["ways"], reversed(names), strict=True):
        way["runs"] = [name]
    ways, _, legend = shown("compare", found, *names)
    assert (ways, legend) == ([names[1], names[0]], ["together", "alone-slot"])
