"""A program whose second process is killed on the first try, hangs on the second, and is well on the third.

`torchrun --nproc-per-node 2 --max-restarts 2 fragile.py FOLDER`
"""

from __future__ import annotations

import os
import signal
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import torch

import ranks
from palm.controller import Controller
from palm.distributed import rank, restarts
from palm.loop import Step, Training

KILLED_AT, HANGS_AT = 13, 20
well = Training.steps


def fragile(training: Training) -> Iterator[Step]:
    """The steps of a training, with its accidents."""
    for step in well(training):
        if rank() == 1 and restarts() == 0 and step.number == KILLED_AT:
            os.kill(os.getpid(), getattr(signal, "SIGKILL", signal.SIGTERM))
        if rank() == 1 and restarts() == 1 and step.number == HANGS_AT:
            time.sleep(600)
        yield step


if __name__ == "__main__":
    torch.set_num_threads(1)
    Training.steps = fragile  # type: ignore[method-assign]
    settings = {"save_every_n_steps": ranks.SAVED, "process_group_timeout": 10}
    folder = Path(sys.argv.pop())
    Controller(ranks.config(folder, "fragile", 2, **settings)).train()
