"""Answers are counted as the official scripts of SQuAD 1.1, SQuAD 2.0 and CMRC 2018 count them."""

from __future__ import annotations

import json
from typing import Any

import pytest

from helpers.shared import GOLDEN
from palm.metrics import METRICS, scores_of

NAMES = ["squad", "squad2", "cmrc"]


def recorded(name: str) -> dict[str, Any]:
    data: dict[str, Any] = json.loads((GOLDEN / "metrics" / f"{name}.json").read_text(encoding="utf-8"))
    return data


def scored(name: str, cases: list[dict[str, Any]]) -> dict[str, float]:
    """Our numbers; `null_odds` are given where they were recorded."""
    pairs = [
        (
            {"text": case["prediction"]} | {key: case[key] for key in ("null_odds",) if key in case},
            {"answers": case["answers"]},
        )
        for case in cases
    ]
    return scores_of([METRICS[name]], pairs)


@pytest.mark.parametrize("name", NAMES)
def test_every_answer_scores_as_in_the_official_script(name: str) -> None:
    cases = recorded(name)["cases"]
    assert len(cases) >= 300
    for case in cases:
        ours = scored(name, [case])
        expected = {key: pytest.approx(100 * case[key], abs=1e-9) for key in ("exact_match", "f1")}
        assert {key: ours[key] for key in expected} == expected, case


@pytest.mark.parametrize("name", NAMES)
def test_a_whole_file_scores_as_in_the_official_script(name: str) -> None:
    data = recorded(name)
    assert scored(name, data["cases"]) == pytest.approx(data["all"], abs=1e-9)
