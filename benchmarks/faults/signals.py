"""Send every signal to every command at several moments, and see how it ends.

python benchmarks/faults/signals.py [--moments 2] [--starts 200]
"""

from __future__ import annotations

import argparse
import json
import os
import random
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Set
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[2]))

from benchmarks.faults import tiny_run
from benchmarks.faults.kills import Trials

ROOT = Path(__file__).parents[2]
LONG = ("train", "predict", "evaluate")
"""Commands that go on for longer than a trial takes; the others may come to their end before the signal."""

START_SECONDS = 3.0
"""How long `train` takes to its first steps, about."""

NAMES = ("SIGINT", "SIGTERM", "SIGHUP", "SIGUSR1")


def commands(data: Path, model: Path, work: Path) -> dict[str, list[str]]:
    """The commands, each long enough to be caught at work."""
    config = work / "config.yaml"
    settings = tiny_run.settings(data, work / "out", num_epochs=2000, overwrite=True, eval_every_epoch=False)
    settings |= {"eval_every_n_steps": -1, "save_every_n_steps": -1}
    for name, task in settings.pop("tasks").items():
        (work / f"{name}.yaml").write_text(json.dumps(task), encoding="utf-8")
    config.write_text(json.dumps(settings), encoding="utf-8")
    many = str(data / "many.tsv")
    return {
        "train": ["train", str(config)],
        "predict": ["predict", "--model", str(model), "--input", many, "--output", str(work / "answers")],
        "evaluate": ["evaluate", "--model", str(model), "--input", str(data / "labelled.tsv")],
        "export": ["export", str(model), "--output", str(work / "exported"), "--to", "hf", "--overwrite"],
        "convert": ["convert", str(model), "--output", str(work / "converted"), "--overwrite"],
        "check": ["check", str(config)],
        "report": ["report", str(work / "trained")],
        "plot": ["plot", str(work / "trained")],
        "inspect": ["inspect", str(work / "trained")],
    }


def trial(words: list[str], number: int, seconds: float) -> tuple[int, float]:
    """The exit code of a command that gets a signal so many seconds after its start, and how long it took."""
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": str(ROOT)}
    process = subprocess.Popen(
        [sys.executable, "-m", "palm", *words],
        env=environment,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        start_new_session=True,
    )
    time.sleep(seconds)
    process.send_signal(number)
    sent = time.perf_counter()
    try:
        code = process.wait(timeout=120)
    except subprocess.TimeoutExpired:
        process.kill()
        code = process.wait()
    return code, time.perf_counter() - sent


def problems_after(
    words: list[str], number: int, seconds: float, work: Path, ends_with: Set[int] = frozenset()
) -> list[str]:
    """What is wrong after a trial; `ends_with` are exit codes that the command may have without a signal."""
    code, waited = trial(words, number, seconds)
    allowed = {128 + number, -number} | ends_with
    wrong = [] if code in allowed else [f"{signal.Signals(number).name}: exit code {code}"]
    wrong += tiny_run.problems(work / "out") + tiny_run.temporaries(work)
    return wrong + ([f"took {waited:.0f} s"] if waited > 60 else [])


def main() -> int:
    """Run the trials; 1 if one went wrong."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--moments", type=int, default=2)
    parser.add_argument("--starts", type=int, default=0, help="signals while `train` starts and imports")
    parser.add_argument("--commands", nargs="*", help="these only")
    options = parser.parse_args()
    for name in NAMES:  # what a shell tells those in its background to ignore, they would pass on
        signal.signal(getattr(signal, name), signal.SIG_DFL)
    trials = Trials()
    with tempfile.TemporaryDirectory() as folder:
        work = Path(folder).resolve()
        data = work / "data"
        tiny_run.write_files(data)
        tiny_run.write_many(data, 200_000)
        labelled = (data / "colour.tsv").read_text(encoding="utf-8").splitlines()
        text = "\n".join([labelled[0], *(labelled[1:] * 5000)]) + "\n"
        (data / "labelled.tsv").write_text(text, encoding="utf-8")
        tiny_run.train(data, work / "trained")
        model = work / "trained" / "colour" / "infer_model"
        every = commands(data, model, work)
        for name in options.commands or every:
            words, is_short = every[name], name not in LONG
            start = time.perf_counter()
            ends_with = {trial(words, 0, 0)[0]} if is_short else set()
            duration = time.perf_counter() - start if is_short else 12.0
            for number in (getattr(signal, each) for each in NAMES):
                for moment in range(options.moments):
                    seconds = duration * (moment + 1) / options.moments
                    trials.add(name, problems_after(words, number, seconds, work, ends_with))
        draw = random.Random(1)
        for number in (getattr(signal, NAMES[each % len(NAMES)]) for each in range(options.starts)):
            seconds = draw.uniform(0.05, START_SECONDS)
            trials.add("train, while it starts", problems_after(every["train"], number, seconds, work))
    return trials.report()


if __name__ == "__main__":
    sys.exit(main())
