"""A program: a run in stages, with several tasks a step, that kills itself after a step of one of them.

`python killed_stage.py FOLDER OUT STAGE STEP`.
"""

from __future__ import annotations

import signal
import sys
from pathlib import Path
from typing import Any

from helpers import tiny
from helpers.callbacks import at_step
from palm.controller.controller import Controller

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


if __name__ == "__main__":
    place, out, stage, step = sys.argv[1:]
    Controller(config(Path(place), out), argv=[]).train([at_step(int(step), signal.SIGKILL, stage)])
