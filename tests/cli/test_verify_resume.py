"""`palm verify-resume` on runs that continue exactly, and on one that cannot."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import yaml

from helpers import tiny
from palm.cli import main

READER = '''
import random

from palm.reader.classify import ClassifyReader


class Forgetful(ClassifyReader):
    """Hides a word of every text, another one each time; the draws are from Python's global generator."""

    def collate(self, rows, indices, draw):
        batch = super().collate(rows, indices, draw)
        batch["token_ids"] = batch["token_ids"].clone()
        batch["token_ids"][0, 1 + random.Random(Forgetful.count).randrange(3)] = 4
        Forgetful.count += 1
        return batch

    count = 0
'''


def verify_resume(folder: Path, *settings: str, **changed: object) -> int:
    """Call the command, which starts processes for its runs, and return its exit status."""
    config = tiny.config(folder, "cls", "mlm", use_ema=True, ema_decay=0.9, num_epochs=1)
    tasks = config.pop("tasks")
    tasks["cls"] |= changed
    for name, task in tasks.items():
        (folder / f"{name}.yaml").write_text(yaml.safe_dump(task), encoding="utf-8")
    (folder / "config.yaml").write_text(yaml.safe_dump(config), encoding="utf-8")
    return main(["verify-resume", str(folder / "config.yaml"), *settings])


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The working directory."""
    monkeypatch.chdir(tmp_path)
    return tiny.write_files(tmp_path)


def test_a_run_that_continues_exactly_passes(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert verify_resume(folder, "--steps", "3", "--more", "4") == 0
    assert (
        capsys.readouterr()
        .out.splitlines()[-1]
        .startswith("identical: 3 steps, a kill and 4 more steps equal 7 uninterrupted ones: ")
    )
    assert not (folder / "out").exists()


def test_a_reader_that_draws_from_a_global_generator_is_caught(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (folder / "forgetful.py").write_text(READER, encoding="utf-8")
    with pytest.raises(SystemExit) as ended:
        verify_resume(folder, "--steps", "3", "--more", "4", reader="forgetful.Forgetful")
    assert ended.value.code == 1
    last = capsys.readouterr().out.splitlines()[-1]
    assert last.startswith("not identical: "), json.dumps(last)
    assert "'cls'" in last
    assert "token_ids" in last


def test_a_run_that_is_too_short_says_so(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert verify_resume(folder, "--steps", "50") == 2
    assert "--more" in capsys.readouterr().err
