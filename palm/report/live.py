"""A callback that writes the report of a run while it goes on."""

from __future__ import annotations

from pathlib import Path

from palm.core.errors import PalmError
from palm.core.group import is_main_process
from palm.core.io import write_text
from palm.core.logging import logger
from palm.report.page import REPORT_FILE, page, write_report
from palm.report.run import read_run
from palm.train.callbacks import Ended, Evaluated, Event, Started


class LiveReport:
    """Writes the page of a run at its start and at every evaluation, and with predictions at its end.

    A browser loads the page again by itself while the run goes on. Only the first process writes. A page
    that cannot be written does not end the run.
    """

    def __init__(self) -> None:
        self._folder: Path | None = None

    def __call__(self, event: Event) -> None:
        if isinstance(event, Started):
            self._folder = event.folder
        if self._folder is None or not is_main_process():
            return
        if isinstance(event, Started | Evaluated | Ended):
            try:
                self._write(self._folder, event)
            except PalmError as error:
                logger.warning("the report was not written: %s", error)

    def _write(self, folder: Path, event: Event) -> None:
        if isinstance(event, Ended) and event.reason == "finished":
            write_report(folder)
            return
        run = read_run(folder)
        analyses = dict.fromkeys(run.history.tasks, "Rows are predicted when the run has finished.")
        write_text(folder / REPORT_FILE, page(run, analyses, is_live=True))
        if isinstance(event, Started):
            logger.info("the report is at %s", folder / REPORT_FILE)
