"""PaddlePALM 2.x: its trainers and components under their published names, signatures and places.

`import palm.compat as palm` is the only line to change in a program of 2.x; names that 2.x did not have are
those of palm.
"""

from importlib import import_module
from typing import Any

from palm.compat import backbone, distribute, downloader, head, lr_sched, optimizer, reader
from palm.compat.multi_head import MultiHeadTrainer
from palm.compat.trainer import Trainer

__all__ = [
    "MultiHeadTrainer",
    "Trainer",
    "backbone",
    "distribute",
    "downloader",
    "head",
    "lr_sched",
    "optimizer",
    "reader",
]


def __getattr__(name: str) -> Any:
    return getattr(import_module("palm"), name)
