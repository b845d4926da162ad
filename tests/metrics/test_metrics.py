"""Scores, worked out by hand."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from palm.metrics import METRICS, calibration_error, squad_scores
from palm.metrics.classification import BINS


@pytest.fixture
def dev(tmp_path: Path) -> Path:
    answers = {
        "a": ["the Red Door"],
        "b": ["1900", "the year 1900"],
        "c": ["in the old town"],
        "d": ["Anna"],
        "e": ["nobody"],
    }
    qas = [
        {"id": key, "question": "?", "answers": [{"text": text, "answer_start": 0} for text in texts]}
        for key, texts in answers.items()
    ]
    path = tmp_path / "dev.json"
    data = {"data": [{"title": "", "paragraphs": [{"context": "", "qas": qas}]}]}
    path.write_text(json.dumps(data), encoding="utf-8")
    return path


def test_case_punctuation_and_articles_do_not_count_and_the_best_answer_does(dev: Path) -> None:
    predictions = {"a": "red door.", "b": "the year 1900", "c": "town", "d": "Bert"}
    scores = squad_scores(predictions, dev)
    # a and b are exact; c shares 1 word of 1 and 3: F1 = 2·1·(1/3)/(1 + 1/3) = 0.5; d and e share none.
    assert scores == {"exact_match": 40.0, "f1": 50.0, "total": 5}


def test_the_deviance_of_a_mean_that_underflowed_is_finite() -> None:
    metric = METRICS["poisson_deviance"]()
    metric.update({"value": 0.0}, {"value": 3})
    assert 100 < metric.compute()["poisson_deviance"] < 1000


def test_the_calibration_error_is_that_of_its_definition() -> None:
    rng = np.random.default_rng(1)
    for _ in range(50):
        probs = rng.integers(0, 31, 40) / 30  # some on the borders of ranges
        right = rng.random(40) < probs
        expected = 0.0
        for k in range(BINS):
            here = (probs > k / BINS) & (probs <= (k + 1) / BINS) | ((k == 0) & (probs == 0))
            if here.any():
                expected += here.mean() * abs(probs[here].mean() - right[here].mean())
        assert calibration_error(probs.tolist(), right.tolist()) == pytest.approx(expected)
