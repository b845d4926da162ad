"""Curves, settings, table and model cards for TensorBoard: event files in `<folder>/tensorboard`."""

from __future__ import annotations

from pathlib import Path

from palm.engine.training.events import Ended, Event, Started
from palm.engine.watching.trackers.curves import Summary, curves_of, settings_text, step_of


class TensorBoard:
    """Writes event files.

    Args:
        name: of the tracker.
        folder: of the run; its files are below it.
    """

    def __init__(self, name: str, folder: Path) -> None:
        self.folder = folder / name
        self.step = 0
        self.summary = Summary()

    def __call__(self, event: Event) -> None:
        self.step = step_of(event)
        if isinstance(event, Started):
            from torch.utils.tensorboard import SummaryWriter

            # A resumed run takes the points behind its checkpoint back.
            purged = {"purge_step": self.step + 1} if self.step else {}
            self.writer = SummaryWriter(str(self.folder), **purged)
            text = settings_text(event.configuration).replace("\n", "\n    ")
            self.writer.add_text("configuration", f"    {text}", self.step)
        self.summary(event)
        for name, value in curves_of(event).items():
            self.writer.add_scalar(name, value, self.step)
        if isinstance(event, Ended):
            for name, text in self.summary.texts():
                self.writer.add_text(name, text, self.step)
            self.writer.close()
