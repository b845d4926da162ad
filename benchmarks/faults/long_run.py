"""20,000 steps with evaluation and checkpoints: memory, open files and pace at the beginning and at the end.

python benchmarks/faults/long_run.py [--steps 20000]
"""

from __future__ import annotations

import argparse
import sys
import tempfile
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[2]))

import palm
from benchmarks.faults import tiny_run
from palm.train.events import Event
from palm.train.loop import Step


def now() -> tuple[float, int]:
    """Resident memory in MB, and open descriptors, of this process."""
    status = Path("/proc/self/status").read_text(encoding="utf-8")
    kilobytes = next(line for line in status.splitlines() if line.startswith("VmRSS")).split()[1]
    return int(kilobytes) / 1024, len(list(Path("/proc/self/fd").iterdir()))


class Pace:
    """A line of the table every so many steps; the pace is in seconds of the processor."""

    def __init__(self, every: int) -> None:
        self.every, self.start = every, time.process_time()

    def __call__(self, event: Event) -> None:
        if isinstance(event, Step) and event.number % self.every == 0:
            memory, files = now()
            pace = 1000 * (time.process_time() - self.start) / self.every
            print(f"| {event.number} | {memory:.1f} | {files} | {pace:.2f} |", flush=True)
            self.start = time.process_time()


def main() -> None:
    """Train, and print the table."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--steps", type=int, default=20_000)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        work = Path(folder)
        tiny_run.write_files(work)
        each = {"save_every_n_steps": 200, "eval_every_n_steps": 200, "print_every_n_steps": -1}
        epochs = options.steps / 2 / 5  # two tasks, 5 steps an epoch
        settings = tiny_run.settings(work, work / "out", num_epochs=epochs, eval_every_epoch=False, **each)
        print("| steps | memory, MB | open files | CPU ms a step |\n|---:|---:|---:|---:|")
        palm.Controller(settings, argv=[]).train([Pace(options.steps // 10)])


if __name__ == "__main__":
    main()
