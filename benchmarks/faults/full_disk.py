"""Let the disk fill up, or turn read-only, at every file-system call in turn; then make room and go on.

    python benchmarks/faults/full_disk.py [--calls 100] [--tmpfs 12] [--parts training others cache tmpfs]

A trial is good if the program ends with a StorageError that tells what to do, everything under its proper
name is whole, and after there is room again the run ends with the bits of one that had room all the time.
With root's rights also on real file systems that are too small (tmpfs). Linux; needs a C compiler. Stopped by
Ctrl-C or SIGTERM, it prints the table of the trials so far.
"""

from __future__ import annotations

import argparse
import errno
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[2]))

from benchmarks.faults import tiny_run
from benchmarks.faults.kills import Trials, contents, fresh, judged, left_in_peace, places
from benchmarks.faults.shim import in_a_child, under_the_shim

FAULTS = {errno.ENOSPC: "the disk is full", errno.EROFS: "read-only"}


SHORT = {"num_epochs": 1, "save_every_n_steps": 10, "eval_every_n_steps": 10, "eval_every_epoch": False}
"""A run that writes every kind of file once, so that all its calls can be tried."""


PARTS = ("training", "others", "cache", "tmpfs")


def training(
    data: Path, work: Path, wanted: int, trials: Trials, reference: str, more: dict[str, Any]
) -> None:
    """Runs whose disk refuses from one call on."""
    out = work / "out"
    for number, words in FAULTS.items():
        kind = f"training, {words}"
        run = lambda: tiny_run.train(data, out, resume="auto", **more)  # noqa: E731
        fresh(out)
        total = in_a_child(run, out, 0, number).calls
        print(f"{kind}: {total} calls", flush=True)
        for call in places(total, wanted):
            fresh(out)
            ended = in_a_child(run, out, call, number, lasting=True)
            wrong = told(ended.said, words) + judged(out, reference, run)
            trials.add(kind, [f"call {call} ({ended.call}): {line}" for line in wrong])


def told(said: str, words: str) -> list[str]:
    """Nothing where a program said what it should; one that needed no more room may also have ended well."""
    is_right = said.startswith("StorageError") and words in said
    return [] if is_right or said in ("trained", "predicted", "converted") else [f"it said {said[:200]!r}"]


def others(data: Path, work: Path, wanted: int, trials: Trials) -> None:
    """Predictions, and a folder that replaces another."""
    out = fresh(work / "whole")
    in_a_child(lambda: tiny_run.train(data, out), out)
    target = work / "encoders" / "converted"
    works: dict[str, tuple[Path, Callable[[], str]]] = {
        "predicting": (out / "predicted", lambda: tiny_run.predict(data, out, resume=True)),
        # It is written beside its place, and then put there.
        "converting": (target.parent, lambda: tiny_run.convert(out, target)),
    }
    for name, (place, work_) in works.items():
        for number, words in FAULTS.items():
            in_a_child(work_, place)
            before = contents(place)
            total = in_a_child(work_, place, 0, number).calls
            for call in places(total, wanted):
                ended = in_a_child(work_, place, call, number, lasting=True)
                wrong = told(ended.said, words)
                in_a_child(work_, place)
                if contents(place) != before:
                    wrong.append("the result is another one")
                trials.add(f"{name}, {words}", [f"call {call} ({ended.call}): {line}" for line in wrong])


def cache(data: Path, work: Path, wanted: int, trials: Trials, reference: str, more: dict[str, Any]) -> None:
    """A data cache that cannot be written stops no run."""
    place, out = work / "cache", work / "out"
    for number, words in FAULTS.items():
        cached = {"use_data_cache": True, "data_cache": str(place)}
        run = lambda: tiny_run.train(data, out, **{**more, **cached})  # noqa: B023, E731
        total = 0
        for call in range(1, 1000):
            shutil.rmtree(place, ignore_errors=True)
            fresh(out)
            if call == 1:
                total = in_a_child(run, place, 0, number).calls
                shutil.rmtree(place, ignore_errors=True)
                fresh(out)
            ended = in_a_child(run, place, call, number, lasting=True)
            same = tiny_run.fingerprint(out) == reference
            trials.add(f"the data cache, {words}", [] if same else [f"call {call}: {ended.said[:200]}"])
            if call >= min(total, wanted):
                break


def tmpfs(data: Path, work: Path, wanted: int, trials: Trials, reference: str) -> None:
    """Runs on real file systems that are too small, which then grow."""
    place = work / "tmpfs"
    place.mkdir()
    out = place / "out"

    def run() -> str:
        return tiny_run.train(data, out, resume="auto")

    if subprocess.run(["mount", "-t", "tmpfs", "-o", "size=16k", "tmpfs", place], check=False).returncode:
        print("no tmpfs can be mounted here; needs root")
        return
    try:
        for number in range(wanted):
            size = f"{16 + 48 * number}k"
            shutil.rmtree(out, ignore_errors=True)
            subprocess.run(["mount", "-o", f"remount,size={size}", place], check=True)
            fresh(out)
            ended = in_a_child(run, out)
            wrong = told(ended.said, "the disk is full")
            subprocess.run(["mount", "-o", "remount,size=100m", place], check=True)
            wrong += judged(out, reference, run)
            trials.add("training on a tmpfs that is too small", [f"{size}: {line}" for line in wrong])
    finally:
        subprocess.run(["umount", "-l", place], check=True)


def main() -> int:
    """Run the trials; 1 if one went wrong."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--calls", type=int, help="of each kind, evenly spread; 100, or all with --short")
    parser.add_argument("--tmpfs", type=int, default=12)
    parser.add_argument("--short", action="store_true", help="a shorter run")
    parser.add_argument("--parts", nargs="+", choices=PARTS, default=PARTS)
    options = parser.parse_args()
    more: dict[str, Any] = SHORT if options.short else {}
    under_the_shim()
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    trials = Trials()
    try:
        with tempfile.TemporaryDirectory() as folder:
            work = Path(folder).resolve()
            data, reference = left_in_peace(work, **more)
            wanted = options.calls or (sys.maxsize if options.short else 100)
            if "training" in options.parts:
                training(data, work, wanted, trials, reference, more)
            if "others" in options.parts:
                others(data, work, wanted, trials)
            if "cache" in options.parts:
                cache(data, work, wanted, trials, reference, more)
            if "tmpfs" in options.parts and not options.short:
                tmpfs(data, work, options.tmpfs, trials, reference)
    except KeyboardInterrupt:
        print("stopped")
    return trials.report()


if __name__ == "__main__":
    sys.exit(main())
