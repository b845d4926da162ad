"""The logger for TensorBoard: curves, settings, results and model cards in `<folder>/tensorboard`."""

from __future__ import annotations

from collections.abc import Mapping

from palm.train.callbacks import Ended, Started
from palm.train.loggers.base import Logger, settings_text


class TensorBoard(Logger):
    """A logger that writes event files."""

    def start(self, event: Started) -> None:
        from torch.utils.tensorboard import SummaryWriter

        # A resumed run removes the points after its checkpoint.
        purged = {"purge_step": self.step + 1} if self.step else {}
        self.writer = SummaryWriter(str(self.folder), **purged)
        text = settings_text(event.configuration).replace("\n", "\n    ")
        self.writer.add_text("configuration", f"    {text}", self.step)

    def log(self, points: Mapping[str, float]) -> None:
        for name, value in points.items():
            self.writer.add_scalar(name, value, self.step)

    def end(self, event: Ended) -> None:  # noqa: ARG002
        for name, text in self.texts():
            self.writer.add_text(name, text, self.step)
        self.writer.close()
