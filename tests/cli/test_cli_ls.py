"""`palm ls`: what a configuration can name."""

from __future__ import annotations

import pytest

from palm.cli import main
from palm.mixing import MIXINGS


def told(words: list[str], capsys: pytest.CaptureFixture[str]) -> str:
    capsys.readouterr()
    assert main(["ls", *words]) == 0
    return capsys.readouterr().out


def test_all_kinds_are_listed_a_line_each(capsys: pytest.CaptureFixture[str]) -> None:
    lines = told([], capsys).splitlines()
    kinds = [line.rstrip(":") for line in lines if line.endswith(":") and not line.startswith(" ")]
    assert kinds == [
        *("reader", "paradigm", "backbone", "metrics", "mixing", "optimizer", "lr_scheduler", "balance")
    ]
    assert sum(line.startswith("  seq_label ") for line in lines) == 2


def test_a_component_is_reported_with_its_settings(capsys: pytest.CaptureFixture[str]) -> None:
    text = told(["mixing.temperature"], capsys)
    assert text.startswith("mixing.temperature: Between proportional and equal")
    assert "  mixing_temperature  (number, default 2.0)\n      T of the strategy temperature" in text
    assert "  in a configuration: mixing: temperature\n" in text
    assert told(["temperature"], capsys) == text
    assert told(["metrics.mse"], capsys).endswith("  no settings\n")
    assert "warmup_steps" not in told(["lr_scheduler.linear"], capsys)


def test_a_kind_is_listed_by_itself(capsys: pytest.CaptureFixture[str]) -> None:
    assert [line.split()[0] for line in told(["mixing"], capsys).splitlines()] == ["mixing:", *MIXINGS]


def test_a_misspelt_name_is_reported_with_what_was_meant(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["ls", "mixing.temprature"]) == 2
    error = capsys.readouterr().err
    assert "'mixing.temprature'" in error
    assert "'mixing.temperature'?" in error
    assert main(["ls", "batchsize"]) == 2
    assert "'batchsize'" in capsys.readouterr().err
