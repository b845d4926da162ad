"""Mistakes of new users: each is reported with its place and its values, without a traceback."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import pytest

from helpers import tiny
from helpers.mistakes import MISTAKES, controller, make
from palm.core.errors import ConfigError, PalmError

SETTINGS: dict[str, Any] = {
    "learning_rate": "many",
    "num_epochs": "many",
    "batch_size": 2.5,
    "max_seq_len": 2.5,
    "mix_ratio": {"a": 1},
    "target_tag": {"a": 1},
    "use_ema": "perhaps",
    "do_lower_case": "perhaps",
    "precision": "neither",
    "early_stopping_by": "neither",
    "lora": 7,
    "columns": 7,
}
"""A setting of every type -> a value of another type."""


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny.write_files(tmp_path_factory.mktemp("run"))


@pytest.mark.parametrize(("kind", "what", "told"), MISTAKES, ids=[f"{m[0]}-{m[1]}"[:60] for m in MISTAKES])
def test_a_mistake_is_reported(
    kind: str,
    what: Any,
    told: list[str],
    folder: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(folder)
    monkeypatch.setattr("sys.path", [*sys.path])
    code: object = 2
    message = ""
    try:
        code = make(folder, kind, what)
    except PalmError as error:
        message = str(error)
    except SystemExit as end:
        code = end.code
    message = message or capsys.readouterr().err
    assert code == 2
    assert "Traceback" not in message
    assert [words for words in told if words not in message] == [], message


@pytest.mark.parametrize("name", SETTINGS)
def test_a_value_of_another_type_and_a_misspelt_name_come_with_place_and_value(
    name: str, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(folder)
    wrong = name[: len(name) // 2] + name[len(name) // 2 + 1 :]
    with pytest.raises(ConfigError) as caught:
        controller(folder, {name: SETTINGS[name], wrong: 1})
    value, misspelt = sorted(caught.value.problems, key=lambda problem: repr(wrong) in problem)
    assert value.startswith("config.yaml:")
    assert name in value
    assert repr(SETTINGS[name]) in value
    assert misspelt.startswith("config.yaml:")
    assert repr(name) in misspelt
