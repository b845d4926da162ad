"""A program whose second process is killed on the first try, hangs on the second, and is well on the third.

`torchrun --nproc-per-node 2 --max-restarts 2 fragile.py FOLDER fragile`

With RUN in place of `fragile` it writes there, and has one accident only, on the machine whose environment
has DOOMED: the process is killed, and the launcher with it.
"""

from __future__ import annotations

import os
import signal
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import torch

from helpers import ranks
from palm.controller.controller import Controller
from palm.core.group import rank
from palm.train.loop import Step, Training

KILLED_AT, HANGS_AT = 13, 20
well = Training.steps


def fragile(training: Training) -> Iterator[Step]:
    """The steps of a training, with its accidents."""
    tries = int(os.environ["TORCHELASTIC_RESTART_COUNT"])
    for step in well(training):
        if rank() == 1 and tries == 0 and step.number == KILLED_AT:
            kill(os.getpid())
        if rank() == 1 and tries == 1 and step.number == HANGS_AT:
            signal.signal(signal.SIGTERM, signal.SIG_DFL)  # the launcher would wait half a minute for its end
            time.sleep(600)
        yield step


def doomed(training: Training) -> Iterator[Step]:
    """The steps of a training, up to the end of the machine."""
    for step in well(training):
        if step.number == KILLED_AT:
            kill(os.getppid())
            kill(os.getpid())
        yield step


def kill(process: int) -> None:
    """End a process without giving it time for anything."""
    os.kill(process, getattr(signal, "SIGKILL", signal.SIGTERM))


if __name__ == "__main__":
    torch.set_num_threads(1)
    run = sys.argv.pop()
    folder = Path(sys.argv.pop())
    if run == "fragile":
        Training.steps = fragile  # type: ignore[method-assign]
    elif "DOOMED" in os.environ:
        Training.steps = doomed  # type: ignore[method-assign]
    settings = {"save_every_n_steps": ranks.SAVED, "process_group_timeout": 6, "resume": "auto"}
    Controller(ranks.config(folder, run, 2, **settings)).train()
