"""A run that is killed and resumed in a new process is the uninterrupted run, bit by bit."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import palm
from helpers.callbacks import at_step, configuration
from palm.train.callbacks import Event
from palm.train.loop import Step

ROOT = Path(__file__).resolve().parents[2]
KILLED_AFTER = 26
"""Six steps after the last checkpoint."""


class Losses:
    """Append the loss of every step to a file; the last line of a step counts."""

    def __init__(self, file: Path) -> None:
        self.file = file

    def __call__(self, event: Event) -> None:
        if isinstance(event, Step):
            with self.file.open("a", encoding="utf-8") as file:
                file.write(json.dumps([event.number, event.task.name, repr(float(event.loss))]) + "\n")

    def by_step(self) -> dict[int, list[str]]:
        return {step: rest for step, *rest in map(json.loads, self.file.read_text().splitlines())}


def train(folder: Path, killed: bool = False) -> None:
    """Train with dropout, masking and averages of the weights, so that every kind of state counts."""
    settings: dict[str, Any] = {"use_ema": True, "ema_decay": 0.9, "resume": "auto", "overwrite": False}
    config = configuration(folder, **settings)
    ends = [at_step(KILLED_AFTER, signal.SIGKILL)] if killed else []
    palm.Controller(config, argv=[]).train([Losses(folder / "losses.jsonl"), *ends])


def test_a_killed_run_resumes_bit_identically(tmp_path: Path, loaded_python: list[str]) -> None:
    train(tmp_path / "whole")
    environment = {name: value for name, value in os.environ.items() if not name.startswith("PYTEST")}
    environment["PYTHONPATH"] = os.pathsep.join([str(ROOT), str(ROOT / "tests")])
    for killed in ("yes", ""):  # state in memory, such as generators and caches, does not survive the kill
        words = [*loaded_python, __file__, str(tmp_path / "parts"), killed]
        done = subprocess.run(words, env=environment, capture_output=True, text=True, check=False)
        assert done.returncode == (-signal.SIGKILL if killed else 0), done.stderr
    whole, parts = (Losses(tmp_path / name / "losses.jsonl").by_step() for name in ("whole", "parts"))
    assert max(whole) > KILLED_AFTER
    assert parts == whole
    files = sorted(tmp_path.glob("whole/out/**/*.safetensors"))
    assert len(files) > 4
    for file in files:
        other = tmp_path / "parts" / file.relative_to(tmp_path / "whole")
        assert other.read_bytes() == file.read_bytes(), file


if __name__ == "__main__":
    train(Path(sys.argv[1]), killed=bool(sys.argv[2]))
