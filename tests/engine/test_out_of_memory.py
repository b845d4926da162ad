"""A GPU whose memory is used up: what takes it, and what takes less."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from helpers import tiny
from palm.cli import main


@pytest.fixture
def config(tmp_path: Path) -> Path:
    tiny.write_files(tmp_path)
    given = tiny.config(tmp_path, "cls", batch_size=16)
    given["tasks"]["cls"] |= {"paradigm": "helpers.hungry.Hungry", "n_classes": 4}
    file = tmp_path / "config.yaml"
    file.write_text(json.dumps(given), encoding="utf-8")
    return file


def test_a_step_that_does_not_fit_is_described_with_what_takes_less(
    config: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    assert main(["train", str(config)]) == 2
    said = capfd.readouterr().err
    assert "Traceback" not in said
    last = " ".join(said.rpartition("error: ")[2].split())
    facts = [
        "'cls' at global step 1",
        "16 rows of up to",
        "Tried to allocate 2.00 GiB",
        "the optimizer 0.0 MiB",
    ]
    settings = [
        "batch_size",
        "gradient_accumulation_steps",
        "max_tokens_per_batch",
        "activation_checkpointing",
    ]
    assert [word for word in [*facts, *settings, "--find_batch_size"] if word not in last] == []


def test_check_finds_batches_that_fit(config: Path, capfd: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as caught:
        main(["check", str(config), "--find_batch_size", "--json"])
    assert caught.value.code == 1
    found = json.loads(capfd.readouterr().out)
    [problem] = [each for each in found["problems"] if each["code"] == "memory"]
    assert problem["remedy"] == "set --cls.batch_size 4 --cls.gradient_accumulation_steps 4"
    assert found["plan"]["tasks"][0]["gradient_accumulation_steps"] == 4
    assert found["cost"]["seconds"] > 0


def test_a_run_with_the_batches_that_were_found_trains(config: Path) -> None:
    words = ["--cls.batch_size", "4", "--cls.gradient_accumulation_steps", "4", "--max_steps", "2"]
    assert main(["train", str(config), *words]) == 0
