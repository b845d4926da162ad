"""How near `palm check` comes to the run: its steps, its time, its memory, beside those of `palm train`.

    python benchmarks/check_accuracy.py --case demo7 project          # on the encoder of the demos, minutes
    python benchmarks/check_accuracy.py --minilm path/to/model --case intent

Each case is checked, trained and checked again, each in a process of its own; the mean of the two checks is
told, since what else runs on the machine changes meanwhile. Memory is the most that a process took.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
CASES = {
    "demo2": ["demos/demo2/config.yaml", "--task_dir", "tasks", "--num_epochs", "0.3"],
    "demo3": ["demos/demo3/config.yaml", "--task_dir", "tasks", "--num_epochs", "0.3"],
    "demo7": ["demos/demo7/config.yaml", "--num_epochs", "2"],
}
"""The configurations of demos, shortened."""


@dataclass(frozen=True)
class Seen:
    """What a run took, or was said to take."""

    steps: dict[str, int]
    seconds: float
    megabytes: float


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--case", nargs="+", default=[*CASES, "project"], help="demos, project, intent")
    parser.add_argument("--minilm", type=Path, help="a Hugging Face BERT directory, for the case intent")
    options = parser.parse_args()
    print("| case | steps | time: check | run | ratio | memory: check | run | ratio |")
    print("|---|---|---|---|---|---|---|---|")
    for name in options.case:
        with tempfile.TemporaryDirectory() as folder:
            place = Path(folder)
            words = [*_words(name, place, options.minilm), "--save_path", str(place / "out")]
            words += ["--data_cache", str(place / "cache")]
            checks = [_checked(words)]
            run = _trained(words, place / "out")
            checks.append(_checked([*words, "--overwrite"]))
        assert all(check.steps == run.steps for check in checks), f"{checks[0].steps} are not {run.steps}"
        seconds = sum(check.seconds for check in checks) / 2
        megabytes = sum(check.megabytes for check in checks) / 2
        print(
            f"| {name} | {sum(run.steps.values())}, equal | {seconds:.1f} s | {run.seconds:.1f} s "
            f"| {seconds / run.seconds:.2f} | {megabytes:.0f} MB | {run.megabytes:.0f} MB "
            f"| {megabytes / run.megabytes:.2f} |",
            flush=True,
        )


def _words(name: str, place: Path, minilm: Path | None) -> list[str]:
    if name in CASES:
        config, *rest = CASES[name]
        return [str(ROOT / config), *rest]
    tasks = "cls,match,mlm" if name == "intent" else "cls,seq_label,mrc,match,mlm"
    _run(["init", str(place / "project"), "--tasks", tasks])
    words = [str(place / "project" / "config.yaml")]
    if name == "intent":
        assert minilm is not None, "the case intent needs --minilm"
        words += ["--pretrain", str(minilm), "--learning_rate", "5e-5", "--num_epochs", "5"]
    return words


def _checked(words: list[str]) -> Seen:
    found = json.loads(_run(["check", *words, "--json", "-"])[0])
    steps = {task["task"]: task["drawn"] for task in found["plan"]["tasks"]}
    return Seen(steps, found["cost"]["seconds"], found["cost"]["memory_bytes"] / 2**20)


def _trained(words: list[str], folder: Path) -> Seen:
    _, kilobytes = _run(["train", *words])
    lines: list[dict[str, Any]] = list(_lines(folder / "history.jsonl"))
    draws = [line for line in lines if line["event"] == "draws"]
    return Seen(draws[-1]["steps"], lines[-1]["seconds"], kilobytes / 1024)


def _lines(file: Path) -> Iterator[dict[str, Any]]:
    return (json.loads(line) for line in file.read_text(encoding="utf-8").splitlines())


def _run(words: list[str]) -> tuple[str, int]:
    """What a command of palm writes, and the most memory that it took, in KiB."""
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    with tempfile.TemporaryFile() as output, tempfile.TemporaryFile() as log:
        process = subprocess.Popen(
            [sys.executable, "-m", "palm", *words], stdout=output, stderr=log, env=environment
        )
        _, status, usage = os.wait4(process.pid, 0)
        process.returncode = os.waitstatus_to_exitcode(status)
        for stream in (output, log):
            stream.seek(0)
        if process.returncode:
            raise SystemExit(log.read().decode() + output.read().decode())
        return output.read().decode(), usage.ru_maxrss


if __name__ == "__main__":
    main()
