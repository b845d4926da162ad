"""The page of a run that goes on."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

import palm
from helpers import tiny
from helpers.callbacks import configuration
from palm.cli import main
from palm.core.logging import logger
from palm.report.live import LiveReport
from palm.train.callbacks import Ended, Evaluated, Event, Started

pytest.importorskip("altair", reason="the extra report is not installed")


def test_the_page_shows_how_far_the_run_is_and_loads_itself_again_until_its_end(tmp_path: Path) -> None:
    seen: list[tuple[str, int, int, int]] = []
    page = tmp_path / "out" / "report.html"

    def watch(event: Event) -> None:
        if isinstance(event, Started | Evaluated):
            text = page.read_text(encoding="utf-8")
            found = re.search(r"Training goes on: step (\d+) of (\d+)", text)
            assert found is not None
            refresh = re.search(r'data-refresh="(\d+)"', text)
            assert refresh is not None
            seen.append((type(event).__name__, int(found[1]), int(found[2]), int(refresh[1])))
        elif isinstance(event, Ended):
            text = page.read_text(encoding="utf-8")
            assert "Training goes on" not in text
            assert 'data-refresh="0"' in text
            assert "Rows with the largest error" in text

    given = configuration(tmp_path, eval_every_n_steps=10)
    result = palm.Controller(given, argv=[]).train([LiveReport(), watch])
    steps = sorted({event.step for event in result.history if isinstance(event, Evaluated)})
    total = sum(result.planned.values())
    expected = [("Started", 0, total, 10), *(("Evaluated", step, total, 10) for step in steps)]
    assert seen == expected


def test_the_option_writes_the_page_and_one_that_cannot_be_written_does_not_end_the_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = tiny.config(tiny.write_files(tmp_path), "cls", with_dev=True, num_epochs=1)
    words = ["train", str(tiny.write_config(tmp_path, config)), "--report"]
    assert main(words) == 0
    assert (tmp_path / "out" / "report.html").is_file()

    def refused(*_: object) -> None:
        raise palm.StorageError("cannot write")

    told: list[str] = []
    monkeypatch.setattr("palm.report.live.write_text", refused)
    monkeypatch.setattr(logger, "warning", lambda text, *values: told.append(text % values))
    assert main([*words, "--save_path", str(tmp_path / "other")]) == 0
    assert "the report was not written: cannot write" in told
