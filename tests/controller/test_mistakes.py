"""Hundreds of mistakes of new users: each is told with its place, cause and remedy, none by a traceback."""

from __future__ import annotations

import sys
from collections import Counter
from pathlib import Path

import pytest

from helpers import tiny
from helpers.mistakes import MISTAKES, Mistake
from palm.core.errors import PalmError

PAGE = Path(__file__).resolve().parents[2] / "docs" / "reliability.md"


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny.write_files(tmp_path_factory.mktemp("run"))


@pytest.mark.parametrize("mistake", MISTAKES, ids=[f"{each.kind}-{each.title}" for each in MISTAKES])
def test_a_mistake_is_told(
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


def test_the_page_counts_them() -> None:
    counts = Counter(each.kind for each in MISTAKES)
    rows = [f"| {kind} | {count} |" for kind, count in counts.items()]
    table = "\n".join([*rows, f"| together | {len(MISTAKES)} |"])
    assert len(MISTAKES) >= 400
    assert table in PAGE.read_text(encoding="utf-8")
