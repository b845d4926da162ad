"""Hundreds of mistakes of new users: each is reported with place, cause and remedy, without a traceback."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from helpers import tiny
from helpers.mistakes import MISTAKES, Mistake
from palm.core.errors import PalmError


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny.write_files(tmp_path_factory.mktemp("run"))


@pytest.mark.parametrize("mistake", MISTAKES, ids=[f"{each.kind}-{each.title}" for each in MISTAKES])
def test_a_mistake_is_reported(
    mistake: Mistake, folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(folder)
    monkeypatch.setattr("sys.path", [*sys.path])
    code, message = 2, ""
    try:
        code = mistake.act(folder)
    except PalmError as error:
        message = str(error)
    except SystemExit as end:
        code = end.code  # type: ignore[assignment]
    message = message or capsys.readouterr().err
    assert code == 2
    assert "Traceback" not in message
    for words in mistake.told:
        assert words in message


def test_there_are_as_many_as_the_page_says() -> None:
    assert len(MISTAKES) > 1600
