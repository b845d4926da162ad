"""`palm verify-resume` on runs that continue exactly, and on one that cannot."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import yaml

from helpers import tiny

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


def verify_resume(folder: Path, *settings: str, **changed: object) -> subprocess.CompletedProcess[str]:
    config = tiny.config(folder, "cls", "mlm", use_ema=True, ema_decay=0.9, num_epochs=1)
    tasks = config.pop("tasks")
    tasks["cls"] |= changed
    for name, task in tasks.items():
        (folder / f"{name}.yaml").write_text(yaml.safe_dump(task), encoding="utf-8")
    (folder / "config.yaml").write_text(yaml.safe_dump(config), encoding="utf-8")
    command = [sys.executable, "-m", "palm", "verify-resume", str(folder / "config.yaml"), *settings]
    path = os.pathsep.join(sys.path)
    environment = {key: value for key, value in os.environ.items() if not key.startswith("PYTEST")}
    return subprocess.run(
        command,
        env={**environment, "OMP_NUM_THREADS": "1", "PYTHONPATH": path},
        capture_output=True,
        text=True,
        encoding="utf-8",
        cwd=folder,
        check=False,
    )


def test_a_run_that_continues_exactly_passes(tmp_path: Path) -> None:
    done = verify_resume(tiny.write_files(tmp_path), "--steps", "3", "--more", "4")
    assert done.returncode == 0, done.stderr + done.stdout
    assert done.stdout.splitlines()[-1].startswith(
        "identical: 3 steps, a kill and 4 more steps equal 7 uninterrupted ones: "
    )
    assert not (tmp_path / "out").exists()


def test_a_reader_that_draws_from_a_global_generator_is_caught(tmp_path: Path) -> None:
    tiny.write_files(tmp_path)
    (tmp_path / "forgetful.py").write_text(READER, encoding="utf-8")
    done = verify_resume(tmp_path, "--steps", "3", "--more", "4", reader="forgetful.Forgetful")
    assert done.returncode == 1, done.stderr + done.stdout
    last = done.stdout.splitlines()[-1]
    assert last.startswith("not identical: "), json.dumps(last)
    assert "'cls'" in last
    assert "token_ids" in last


def test_a_run_that_is_too_short_says_so(tmp_path: Path) -> None:
    done = verify_resume(tiny.write_files(tmp_path), "--steps", "50")
    assert done.returncode == 2
    assert "--more" in done.stderr
