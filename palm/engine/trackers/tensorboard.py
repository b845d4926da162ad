"""Curves, settings, table and model cards for TensorBoard: event files in `<folder>/tensorboard`."""

from __future__ import annotations

from pathlib import Path

from palm.engine.events import Ended, Event, Started
from palm.engine.loop import Step
from palm.engine.trackers.curves import Summary, curves_of, settings_text


class TensorBoard:
    """Writes event files.

    Args:
        folder: for `tensorboard --logdir`.
    """

    def __init__(self, folder: Path) -> None:
        self.folder, self.step = folder, 0
        self.summary = Summary()

    def __call__(self, event: Event) -> None:
        if isinstance(event, Started):
            from torch.utils.tensorboard import SummaryWriter

            self.step = event.training.step
            # A resumed run takes the points behind its checkpoint back.
            purged = {"purge_step": self.step + 1} if self.step else {}
            self.writer = SummaryWriter(str(self.folder), **purged)
            text = settings_text(event.configuration).replace("\n", "\n    ")
            self.writer.add_text("configuration", f"    {text}", self.step)
        elif isinstance(event, Step):
            self.step = event.number
        self.summary(event)
        for name, value in curves_of(event).items():
            self.writer.add_scalar(name, value, self.step)
        if isinstance(event, Ended):
            for name, text in self.summary.texts():
                self.writer.add_text(name, text, self.step)
            self.writer.close()


def observer(name: str, folder: Path) -> TensorBoard:
    """That of a run which writes to `folder`."""
    return TensorBoard(folder / name)
