"""Callbacks for runs, and runs to watch."""

from __future__ import annotations

import json
import logging
import os
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import palm
from helpers import tiny
from palm.train.callbacks import Callback, Event, Started
from palm.train.loop import Step


def at_step(number: int, end: BaseException | signal.Signals, stage: str = "") -> Callback:
    """Return a callback that raises an error or sends the process a signal once a global step is made.

    Args:
        number: the step.
        end: the error, or the signal.
        stage: the folder of the stage whose step it is.
    """
    begun: list[str] = []

    def watch(event: Event) -> None:
        if isinstance(event, Started) and event.folder is not None:
            begun.append(event.folder.name)
        if isinstance(event, Step) and event.number == number and stage in ("", *begun[-1:]):
            if isinstance(end, BaseException):
                raise end
            os.kill(os.getpid(), end)

    return watch


def configuration(folder: Path, **settings: Any) -> dict[str, Any]:
    """Two tasks, of which one is evaluated, with a checkpoint every ten steps."""
    tiny.write_files(folder)
    settings = {"save_every_n_steps": 10, "print_every_n_steps": 3, **settings}
    given = tiny.config(folder, "cls", "mrc", **settings)
    given["tasks"]["cls"]["dev_file"] = given["tasks"]["cls"]["train_file"]
    return given


def controller(folder: Path, **settings: Any) -> palm.Controller:
    """A controller of that configuration."""
    return palm.Controller(configuration(folder, **settings), argv=[])


@contextmanager
def logged() -> Iterator[list[str]]:
    """Collect the messages that palm logs, for fixtures that live longer than `caplog`."""
    lines: list[str] = []
    handler, logger = logging.Handler(), logging.getLogger("palm")
    handler.emit = lambda record: lines.append(record.getMessage())  # type: ignore[method-assign]
    logger.addHandler(handler)
    logger.setLevel(logging.INFO)
    try:
        yield lines
    finally:
        logger.removeHandler(handler)
        logger.setLevel(logging.NOTSET)


def timeless(path: Path) -> list[dict[str, Any]]:
    """The lines of a history, or of those of all stages of a run, without what differs between equal runs."""
    files = sorted(path.glob("stages/*/history.jsonl")) if path.is_dir() else [path]
    lines = [json.loads(line) for file in files for line in file.read_text(encoding="utf-8").splitlines()]
    return [{k: v for k, v in line.items() if k not in ("seconds", "time", "memory_bytes")} for line in lines]
