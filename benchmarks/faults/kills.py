"""Kill runs at every file-system call and at random moments, go on, and compare with a run left in peace.

    python benchmarks/faults/kills.py [--calls 200] [--random 100] [--stages 20] [--commands 50] [--grids 33]

A trial is good if, after the kill, everything under its proper name is whole, nobody's own file is touched,
and the run that goes on ends with the same bits, with nothing half-written left; after kills at random
moments, with the same history too, but for times. Linux; needs a C compiler.
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
from benchmarks.faults.shim import KILL, in_a_child, under_the_shim
from palm.cli.starter.project import write_project
from palm.core.files.fs import WRITTEN
from palm.export import to_hugging_face
from palm.predict.prediction_resume import PREDICTION_LOCK
from palm.report.page import write_report

MINE = "not palm's"


def places(total: int, wanted: int) -> Sequence[int]:
    """At most `wanted` call numbers from 1 to `total`, evenly spread, or all."""
    return range(1, total + 1) if total <= wanted else [1 + k * total // wanted for k in range(wanted)]


class Trials:
    """Counts of trials by kind and outcome, with the first failures in words."""

    def __init__(self) -> None:
        self.counts: Counter[tuple[str, str]] = Counter()
        self.failures: list[str] = []

    def add(self, kind: str, wrong: Sequence[str]) -> None:
        """One more trial; nothing wrong is good."""
        self.counts[kind, "bad" if wrong else "good"] += 1
        for line in wrong:
            print(f"{kind}: {line}", flush=True)
        self.failures += [f"{kind}: {line}" for line in wrong]

    def report(self) -> int:
        """Print the table; 0 if all are good."""
        for kind in dict.fromkeys(kind for kind, _ in self.counts):
            good, bad = self.counts[kind, "good"], self.counts[kind, "bad"]
            print(f"| {kind} | {good + bad} | {good} | {bad} |")
        print("\n".join(self.failures[:20]))
        return 1 if self.failures else 0


def judged(out: Path, reference: str, go_on: Callable[[], object]) -> list[str]:
    """What is wrong after a kill and after going on."""
    wrong = tiny_run.problems(out)
    ended = in_a_child(go_on, out)
    if ended.said != "trained":
        return [*wrong, f"going on: {ended.said or ended.signal}"]
    if (found := tiny_run.fingerprint(out)) != reference:
        wrong.append(f"other weights: {found}")
    if (out / "notes.txt").read_text(encoding="utf-8") != MINE:
        wrong.append("notes.txt was touched")
    return wrong + [f"left over: {name}" for name in tiny_run.temporaries(out)]


def fresh(out: Path, before: Path | None = None) -> Path:
    """An empty folder with somebody's file in it, or a copy of one of an earlier run."""
    shutil.rmtree(out, ignore_errors=True)
    if before is None:
        out.mkdir()
    else:
        shutil.copytree(before, out)
    (out / "notes.txt").write_text(MINE, encoding="utf-8")
    return out


def at_calls(data: Path, work: Path, wanted: int, trials: Trials, reference: str) -> None:
    """A new run that is killed before one of its calls and goes on; and one that replaces an older run."""
    older = fresh(work / "older")
    in_a_child(lambda: tiny_run.train(data, older, random_seed=7), older)
    at_calls_of("a new run", None, {"resume": "auto"}, data, work / "out", wanted // 2, trials, reference)
    replaces = {"overwrite": True}
    at_calls_of("replaces another", older, replaces, data, work / "out", wanted // 2, trials, reference)


def at_calls_of(
    name: str,
    before: Path | None,
    more: dict[str, Any],
    data: Path,
    out: Path,
    wanted: int,
    trials: Trials,
    reference: str,
) -> None:
    """One kind of run, killed before one of its calls after another."""
    kind = f"killed at a file-system call: {name}"

    def train() -> str:
        return tiny_run.train(data, out, **more)

    def go_on() -> str:
        return tiny_run.train(data, out, **{"overwrite": True, **more})

    fresh(out, before)
    total = in_a_child(train, out).calls
    print(f"{kind}: {total} calls", flush=True)
    for number in places(total, wanted):
        fresh(out, before)
        ended = in_a_child(train, out, number, KILL)
        if ended.signal != signal.SIGKILL:
            trials.add(kind, [f"call {number}: it was not killed: {ended.said}"])
            continue
        trials.add(kind, [f"call {number}: {line}" for line in judged(out, reference, go_on)])


def at_random(work: Path, wanted: int, trials: Trials, name: str, **more: Any) -> None:
    """Runs that are killed at random moments, each until it comes to its end."""
    data, reference = left_in_peace(work, **more)
    undisturbed = tiny_run.history(work / "reference")
    out, draw, kills = work / "out", random.Random(3), 0

    def go_on() -> str:
        return tiny_run.train(data, out, **more, resume="auto")

    start = time.perf_counter()
    in_a_child(lambda: tiny_run.train(data, fresh(out), **more), out)
    duration = time.perf_counter() - start
    while kills < wanted:
        fresh(out)
        wrong: list[str] = []
        deaths = 0
        while killed_within(draw.uniform(0, duration), go_on):
            deaths += 1
            wrong += tiny_run.problems(out)
        wrong += judged(out, reference, go_on)
        if tiny_run.history(out) != undisturbed:
            wrong.append("another history")
        kills += deaths
        for number in range(deaths):
            trials.add(f"killed at a random moment: {name}", wrong if number == 0 else [])


def killed_within(seconds: float, work: Callable[[], object]) -> bool:
    """Do `work` in a fork and kill it after so many seconds; whether it was still at work then."""
    child = os.fork()
    if child == 0:
        silent = os.open(os.devnull, os.O_WRONLY)
        os.dup2(silent, 1)
        os.dup2(silent, 2)
        try:
            work()
        finally:
            os._exit(0)
    end = time.monotonic() + seconds
    while (ended := os.waitpid(child, os.WNOHANG))[0] == 0 and time.monotonic() < end:
        time.sleep(0.005)
    if ended[0] == 0:
        os.kill(child, signal.SIGKILL)
        ended = os.waitpid(child, 0)
    _, status = ended
    return os.WIFSIGNALED(status)


def predictions(data: Path, work: Path, wanted: int, trials: Trials) -> None:
    """Predictions that are killed at random moments and continued, until the file is there."""
    out, draw, kills = fresh(work / "predicting"), random.Random(4), 0
    in_a_child(lambda: tiny_run.train(data, out), out)
    start = time.perf_counter()
    in_a_child(lambda: tiny_run.predict(data, out), out)
    duration = time.perf_counter() - start
    whole = (out / "predicted" / "predictions.json").read_bytes()
    stays = {"predictions.json", PREDICTION_LOCK, WRITTEN}
    while kills < wanted:
        shutil.rmtree(out / "predicted")
        deaths = 0
        while killed_within(draw.uniform(0, duration), lambda: tiny_run.predict(data, out, resume=True)):
            deaths += 1
        kills += deaths
        same = (out / "predicted" / "predictions.json").read_bytes() == whole
        left = [path.name for path in (out / "predicted").iterdir() if path.name not in stays]
        for number in range(deaths):
            wrong = [] if same and not left else [f"same: {same}, left over: {left}"]
            trials.add("killed at a random moment: predicting", wrong if number == 0 else [])


def of_commands(data: Path, work: Path, wanted: int, trials: Trials) -> None:
    """Commands that write one thing, killed before one of their calls, and given again."""
    run = fresh(work / "whole")
    in_a_child(lambda: tiny_run.train(data, run), run)
    model = run / "colour" / "infer_model"
    cached = {"use_data_cache": True, "data_cache": str(work / "cache"), "max_steps": 1, "overwrite": True}
    commands: dict[str, Callable[[Path], object]] = {
        "init": lambda folder: write_project(folder / "new", {"cls": "cls"}),
        "convert": lambda folder: palm.convert(model, folder / "new", overwrite=True),
        "export": lambda folder: to_hugging_face(model, folder / "new", overwrite=True),
        "merge": lambda folder: palm.merge([model, model], folder / "new", overwrite=True),
        "report": lambda folder: write_report(run, folder / "new.html", predict=False),
        "cache": lambda folder: tiny_run.train(data, work / "out", **{**cached, "data_cache": str(folder)}),
    }
    for name, command in commands.items():
        place = work / f"of {name}"
        place.mkdir()
        total = in_a_child(lambda: command(place), place).calls  # noqa: B023
        whole = contents(place)
        for call in places(total, wanted):
            shutil.rmtree(place)
            place.mkdir()
            (place / "notes.txt").write_text(MINE, encoding="utf-8")
            ended = in_a_child(lambda: command(place), place, call, KILL)  # noqa: B023
            wrong = [] if ended.signal == signal.SIGKILL else [f"it was not killed: {ended.said}"]
            again = in_a_child(lambda: command(place), place)  # noqa: B023
            (place / "notes.txt").unlink()
            if contents(place) != whole:
                wrong.append(f"another result: {again.said[:200]}")
            wrong += [f"left over: {left}" for left in tiny_run.temporaries(place)]
            trials.add(f"killed at a file-system call: {name}", [f"call {call}: {line}" for line in wrong])


def contents(folder: Path) -> dict[str, bytes]:
    """The files of a folder but for the records of what was written, which also name what was given up."""
    files = (file for file in sorted(folder.rglob("*")) if file.is_file() and file.name != WRITTEN)
    return {
        str(file.relative_to(folder)): b"" if file.suffix == ".lock" else file.read_bytes() for file in files
    }


def grids(data: Path, work: Path, wanted: int, trials: Trials) -> None:
    """Sweeps with Optuna, and comparisons, killed at random moments and continued until they end.

    Some are killed with other settings first and begun anew with `overwrite`, some train on two devices.
    """
    short = {"overwrite": True, "num_epochs": 1, "hidden_size": 8}
    settings = tiny_run.settings(data, work / "none", **short)

    def sweep(low: float, **more: Any) -> Callable[[Path], object]:
        rates = {"learning_rate": {"low": low, "high": 1e-1, "log": True}}
        return lambda out: palm.sweep({**settings, **more}, rates, trials=3, output=out, overwrite=True)

    def compare(epochs: int) -> Callable[[Path], object]:
        alone = {**settings, "target_tag": [1, 0], "num_epochs": epochs}
        return lambda out: palm.compare(alone, seeds=2, output=out, overwrite=True)

    for name, first, command in (
        ("sweep", sweep(1e-4), sweep(1e-4)),
        ("compare", compare(1), compare(1)),
        ("sweep, begun anew", sweep(1e-3), sweep(1e-4)),
        ("compare, begun anew", compare(2), compare(1)),
        ("sweep on two devices", sweep(1e-4, num_devices=2), sweep(1e-4, num_devices=2)),
    ):
        killed_grids(work / name.replace(" ", "_"), name, (first, command), wanted, trials)


def killed_grids(
    out: Path, name: str, commands: Sequence[Callable[[Path], object]], wanted: int, trials: Trials
) -> None:
    """A grid that is killed, with its first command once, and continued with the second until it ends."""
    first, command = commands
    draw = random.Random(5)
    start = time.perf_counter()
    killed_within(10_000, lambda: command(out))
    duration = time.perf_counter() - start
    whole = results_of(out, name)
    kills = 0
    while kills < wanted:
        shutil.rmtree(out, ignore_errors=True)
        deaths = int(killed_within(draw.uniform(0, duration), lambda: first(out)))
        while killed_within(draw.uniform(0, duration), lambda: command(out)):
            deaths += 1
        kills += deaths
        wrong = [] if results_of(out, name) == whole else ["other results"]
        wrong += [f"left over: {left}" for left in tiny_run.temporaries(out)]
        for number in range(deaths):
            trials.add(f"killed at a random moment: {name}", wrong if number == 0 else [])
        print(f"{name}: {kills} kills", flush=True)


def results_of(out: Path, name: str) -> Any:
    """The result of a sweep or a comparison, without times."""
    kind = name.replace(",", " ").split()[0]
    return json.loads(
        (out / f"{kind}.json").read_text(encoding="utf-8"),
        object_hook=lambda found: {key: value for key, value in found.items() if key != "seconds"},
    )


def left_in_peace(work: Path, **more: Any) -> tuple[Path, str]:
    """Data in `work / "data"`, and the fingerprint of a run on them in `work / "reference"`."""
    data, out = work / "data", work / "reference"
    tiny_run.write_files(data)
    tiny_run.write_many(data)
    fresh(out)
    in_a_child(lambda: tiny_run.train(data, out, **more), out)
    return data, tiny_run.fingerprint(out)


def main() -> int:
    """Run the trials; 1 if one went wrong."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--calls", type=int, default=200)
    parser.add_argument("--random", type=int, default=100)
    parser.add_argument("--stages", type=int, default=20)
    parser.add_argument("--commands", type=int, default=50)
    parser.add_argument("--grids", type=int, default=33)
    options = parser.parse_args()
    under_the_shim()
    trials = Trials()
    with tempfile.TemporaryDirectory() as folder:
        work = Path(folder).resolve()
        data, reference = left_in_peace(work)
        if options.calls:
            at_calls(data, work, options.calls, trials, reference)
        if options.random:
            at_random(work, options.random, trials, "training")
            predictions(data, work, options.random // 4, trials)
        if options.stages:
            at_random(
                work / "staged", options.stages, trials, "stages, two tasks a step", stages=tiny_run.STAGES
            )
        if options.commands:
            of_commands(data, work, options.commands, trials)
        if options.grids:
            grids(data, work, options.grids, trials)
    return trials.report()


if __name__ == "__main__":
    sys.exit(main())
