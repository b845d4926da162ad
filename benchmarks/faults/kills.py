"""Kill runs at random moments, continue them, and compare them with an uninterrupted run.

    python benchmarks/faults/kills.py [--train 40] [--replace 15] [--stages 15] [--predict 15] [--sweep 15]

A trial is good if, after the kill, everything with a final name is complete, no other file is touched, and
the continued run ends with the same bits and, apart from times, the same history, with no temporary files
left. Linux, because trials are forks.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import shutil
import signal
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[2]))

import palm
from benchmarks.faults import tiny_run

MINE = "not palm's"


class Trials:
    """Counts of trials by kind and outcome, and descriptions of the first failures."""

    def __init__(self) -> None:
        self.counts: Counter[tuple[str, str]] = Counter()
        self.failures: list[str] = []

    def add(self, kind: str, deaths: int, wrong: Sequence[str]) -> None:
        """Count the kills of one trial."""
        self.counts[kind, "bad"] += bool(wrong)
        self.counts[kind, "good"] += deaths - bool(wrong)
        self.failures += [f"{kind}: {line}" for line in wrong]
        print(f"{kind}: {self.counts[kind, 'good']} good, {self.counts[kind, 'bad']} bad", flush=True)

    def report(self) -> int:
        """Print the table; 0 if all are good."""
        for kind in dict.fromkeys(kind for kind, _ in self.counts):
            good, bad = self.counts[kind, "good"], self.counts[kind, "bad"]
            print(f"| {kind} | {good + bad} | {good} | {bad} |")
        print("\n".join(self.failures[:20]))
        return 1 if self.failures else 0


def killed_within(seconds: float, work: Callable[[], object]) -> bool:
    """Do `work` in a fork and kill it after so many seconds; True if it was still at work then.

    Raises:
        RuntimeError: the work failed by itself.
    """
    child = os.fork()
    if child == 0:
        silent = os.open(os.devnull, os.O_WRONLY)
        os.dup2(silent, 1)
        os.dup2(silent, 2)
        try:
            work()
        except BaseException:
            os._exit(1)
        os._exit(0)
    end = time.monotonic() + seconds
    while (ended := os.waitpid(child, os.WNOHANG))[0] == 0 and time.monotonic() < end:
        time.sleep(0.005)
    if ended[0] == 0:
        os.kill(child, signal.SIGKILL)
        ended = os.waitpid(child, 0)
    if os.WIFEXITED(ended[1]) and os.WEXITSTATUS(ended[1]):
        raise RuntimeError("the work failed without being killed")
    return os.WIFSIGNALED(ended[1])


def seconds_of(work: Callable[[], object]) -> float:
    """Do `work` in a fork to its end, and return how long it took."""
    start = time.perf_counter()
    killed_within(10_000, work)
    return time.perf_counter() - start


def fresh(out: Path) -> Path:
    """An empty folder with somebody's file in it."""
    shutil.rmtree(out, ignore_errors=True)
    shutil.rmtree(out.with_name(f"{out.name}.previous"), ignore_errors=True)
    out.mkdir(parents=True)
    (out / "notes.txt").write_text(MINE, encoding="utf-8")
    return out


def runs(data: Path, work: Path, wanted: int, trials: Trials, name: str, **more: Any) -> None:
    """Runs that are killed at random moments, each until it comes to its end."""
    reference, out = work / "reference", work / "out"
    seconds = seconds_of(lambda: tiny_run.train(data, fresh(reference), **more))
    whole = (tiny_run.fingerprint(reference), tiny_run.history(reference))
    draw, kills = random.Random(3), 0

    def go_on() -> str:
        return tiny_run.train(data, out, **more, resume="auto")

    while kills < wanted:
        fresh(out)
        wrong: list[str] = []
        deaths = 0
        while killed_within(draw.uniform(0, seconds), go_on):
            deaths += 1
            wrong += tiny_run.problems(out)
        if (tiny_run.fingerprint(out), tiny_run.history(out)) != whole:
            wrong.append("other weights or another history")
        if (out / "notes.txt").read_text(encoding="utf-8") != MINE:
            wrong.append("notes.txt was touched")
        wrong += [f"left over: {left}" for left in tiny_run.temporaries(out)]
        kills += deaths
        trials.add(name, deaths, wrong)


def replacing(data: Path, work: Path, wanted: int, trials: Trials) -> None:
    """Runs that replace another one and are killed: its models stay, in one of two places."""
    older = fresh(work / "older")
    killed_within(10_000, lambda: tiny_run.train(data, older, random_seed=7))
    models = tiny_run.fingerprint(older)
    out, draw = work / "out", random.Random(6)
    previous = out.with_name("out.previous")
    seconds = seconds_of(lambda: tiny_run.train(data, fresh(out)))
    for _ in range(wanted):
        fresh(out)
        shutil.copytree(older, out, dirs_exist_ok=True)
        killed = killed_within(draw.uniform(0, seconds), lambda: tiny_run.train(data, out, overwrite=True))
        place = previous if previous.exists() else out
        wrong = [] if tiny_run.fingerprint(place) == models else [f"other models in {place.name}"]
        if (place / "notes.txt").read_text(encoding="utf-8") != MINE:
            wrong.append("notes.txt was touched")
        trials.add("a run that replaces another", 1, wrong if killed or previous.exists() else ["not moved"])


def predictions(data: Path, work: Path, wanted: int, trials: Trials) -> None:
    """Predictions that are killed at random moments and continued, until the file is there."""
    out, draw, kills = fresh(work / "predicting"), random.Random(4), 0
    killed_within(10_000, lambda: tiny_run.train(data, out))
    seconds = seconds_of(lambda: tiny_run.predict(data, out))
    whole = (out / "predicted" / "predictions.json").read_bytes()
    while kills < wanted:
        shutil.rmtree(out / "predicted")
        deaths = 0
        while killed_within(draw.uniform(0, seconds), lambda: tiny_run.predict(data, out, resume=True)):
            deaths += 1
        kills += deaths
        same = (out / "predicted" / "predictions.json").read_bytes() == whole
        left = {path.name for path in (out / "predicted").iterdir()} - {
            "predictions.json",
            ".predictions.lock",
        }
        trials.add("predicting", deaths, [] if same and not left else [f"same: {same}, left over: {left}"])


def sweeps(data: Path, work: Path, wanted: int, trials: Trials) -> None:
    """Sweeps of three runs, killed at random moments and continued until they end."""
    settings = tiny_run.settings(data, work / "none", overwrite=True, num_epochs=1, hidden_size=8)
    rates = {"learning_rate": [1e-4, 1e-3, 1e-2]}
    out, draw, kills = work / "sweep", random.Random(5), 0

    def sweep() -> object:
        return palm.sweep(settings, rates, output=out)

    seconds = seconds_of(sweep)
    whole = result_of(out)
    while kills < wanted:
        shutil.rmtree(out)
        deaths = 0
        while killed_within(draw.uniform(0, seconds), sweep):
            deaths += 1
        kills += deaths
        wrong = [] if result_of(out) == whole else ["other results"]
        trials.add("a sweep", deaths, wrong + [f"left over: {each}" for each in tiny_run.temporaries(out)])


def result_of(out: Path) -> Any:
    """The result of a sweep, without times."""
    return json.loads(
        (out / "sweep.json").read_text(encoding="utf-8"),
        object_hook=lambda found: {key: value for key, value in found.items() if key != "seconds"},
    )


def main() -> int:
    """Run the trials; 1 if one went wrong."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    for name, kills in (("train", 40), ("replace", 15), ("stages", 15), ("predict", 15), ("sweep", 15)):
        parser.add_argument(f"--{name}", type=int, default=kills)
    options = parser.parse_args()
    trials = Trials()
    with tempfile.TemporaryDirectory() as folder:
        work = Path(folder).resolve()
        data = work / "data"
        tiny_run.write_files(data)
        tiny_run.write_many(data)
        runs(data, work / "plain", options.train, trials, "training")
        replacing(data, work / "replacing", options.replace, trials)
        stages = {"stages": tiny_run.STAGES}
        runs(data, work / "staged", options.stages, trials, "stages, two tasks a step", **stages)
        predictions(data, work, options.predict, trials)
        sweeps(data, work, options.sweep, trials)
    return trials.report()


if __name__ == "__main__":
    sys.exit(main())
