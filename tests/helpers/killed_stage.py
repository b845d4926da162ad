"""A program: a run in stages, with several tasks a step, that kills itself after a step of one of them.

`python killed_stage.py FOLDER OUT STAGE STEP`.
"""

from __future__ import annotations

import os
import signal
import sys
from pathlib import Path
from typing import Any

from helpers import tiny
from palm.controller.controller import Controller
from palm.train.callbacks import Started
from palm.train.loop import Step

STAGES = [
    {"name": "joint", "tasks_per_step": 2, "balance": "uncertainty"},
    {"name": "pair", "tasks": ["cls", "match"], "tasks_per_step": 2, "balance": "uncertainty"},
    {"tasks": ["match"], "start_from": "joint"},
]


def config(folder: Path, out: str, **settings: Any) -> dict[str, Any]:
    """Five tasks with dropout, checkpoints every third step and averages of the weights."""
    return tiny.config(
        folder,
        "cls",
        "match",
        "mlm",
        *("span", "relation"),
        **{"save_path": str(folder / out), "num_epochs": 1, "overwrite": False, "stages": STAGES},
        **{"save_every_n_steps": 3, "print_every_n_steps": 1, "use_ema": True, "ema_decay": 0.9},
        **settings,
        with_dev=True,
    )


def killing(stage: str, number: int) -> Any:
    """Sends this process a SIGKILL after a step of a stage."""
    begun: list[str] = []

    def watch(event: Any) -> None:
        if isinstance(event, Started) and event.folder is not None:
            begun.append(event.folder.name)
        if isinstance(event, Step) and event.number == number and begun[-1] == stage:
            os.kill(os.getpid(), signal.SIGKILL)

    return watch


if __name__ == "__main__":
    Controller(config(Path(sys.argv[1]), sys.argv[2]), argv=[]).train(
        [killing(sys.argv[3], int(sys.argv[4]))]
    )
