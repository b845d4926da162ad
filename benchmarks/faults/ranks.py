"""Kill one of the processes of a run on two devices, go on, and compare with a run left in peace.

    python benchmarks/faults/ranks.py [--trials 35]

A rank, the launcher or all of them get SIGKILL, a rank or the launcher SIGTERM, at a random moment. A trial
is good if all processes end within two minutes without a traceback, and the run that goes on ends with the
same bits, with nothing half-written left. Linux, Python ≥ 3.11.
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
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[2]))

from benchmarks.faults import tiny_run
from benchmarks.faults.kills import Trials, fresh

ROOT = Path(__file__).parents[2]
WAYS = [
    *((victim, signal.SIGKILL) for victim in ("rank 0", "rank 1", "launcher", "all")),
    *((victim, signal.SIGTERM) for victim in ("rank 0", "rank 1", "launcher")),
]
MOST_SECONDS = 120
EARLIEST = 2.0
"""Seconds after which a run has begun to start its processes."""


def start(config: Path, mark: str, *words: str) -> subprocess.Popen[bytes]:
    """Begin `palm train` with a mark in its environment, which all of its processes inherit."""
    variables = {"PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1", "MARK": mark}
    with config.with_name("log.txt").open("wb") as log:
        return subprocess.Popen(
            [sys.executable, "-P", "-m", "palm", "train", str(config), *words],
            env={**os.environ, **variables},
            stdout=log,
            stderr=log,
            start_new_session=True,
        )


def processes(mark: str) -> dict[int, str]:
    """The processes with a mark, and what each is."""
    found = {}
    for place in Path("/proc").glob("[0-9]*"):
        try:
            words = (place / "environ").read_bytes().split(b"\0")
        except OSError:  # it has just ended
            continue
        if f"MARK={mark}".encode() in words:
            rank = next((word[5:].decode() for word in words if word.startswith(b"RANK=")), None)
            found[int(place.name)] = "launcher" if rank is None else f"rank {rank}"
    return found


def trial(
    config: Path, out: Path, reference: str, way: tuple[str, signal.Signals], seconds: float
) -> list[str]:
    """What is wrong after a signal to one process, and after going on."""
    fresh(out)
    victim, number = way
    launcher = start(config, "killed")
    time.sleep(seconds)
    for process, name in processes("killed").items():
        if victim in (name, "all"):
            os.kill(process, number)
    end = time.monotonic() + MOST_SECONDS
    while (launcher.poll() is None or processes("killed")) and time.monotonic() < end:
        time.sleep(0.1)
    wrong = [f"goes on after {MOST_SECONDS} s: {name}" for name in processes("killed").values()]
    for process in processes("killed"):
        os.kill(process, signal.SIGKILL)
    launcher.wait()
    if "Traceback" in config.with_name("log.txt").read_text(encoding="utf-8", errors="replace"):
        wrong.append("a traceback")
    wrong += tiny_run.problems(out)
    status = start(config, "continued", "--resume", "auto").wait()
    if status or tiny_run.fingerprint(out) != reference:
        wrong.append(f"going on: exit code {status}, or other weights")
    return wrong + [f"left over: {name}" for name in tiny_run.temporaries(out)]


def main() -> int:
    """Run the trials; 1 if one went wrong."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--trials", type=int, default=35)
    trials, draw = Trials(), random.Random(3)
    count = parser.parse_args().trials
    with tempfile.TemporaryDirectory() as folder:
        work = Path(folder).resolve()
        data, out, config = work / "data", work / "out", work / "config.yaml"
        tiny_run.write_files(data, 400)
        tiny_run.write_many(data)
        settings = tiny_run.settings(data, out, num_devices=2)
        config.write_text(json.dumps(settings), encoding="utf-8")
        begin = time.monotonic()
        if start(config, "reference").wait():
            raise SystemExit(config.with_name("log.txt").read_text(encoding="utf-8"))
        duration, reference = time.monotonic() - begin, tiny_run.fingerprint(out)
        for each in range(count):
            victim, number = way = WAYS[each % len(WAYS)]
            wrong = trial(config, out, reference, way, draw.uniform(EARLIEST, duration))
            trials.add(f"{number.name} to {victim}", wrong)
    return trials.report()


if __name__ == "__main__":
    sys.exit(main())
