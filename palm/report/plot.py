"""Curves of runs: the page of several runs, in a file or in a notebook."""

from __future__ import annotations

from dataclasses import dataclass
from html import escape
from pathlib import Path

from palm.report.page import write_report

PLOT_FILE = "curves.html"


@dataclass(frozen=True)
class Page:
    """A page that was written; a notebook shows it.

    Args:
        path: the HTML file.
    """

    path: Path

    def __fspath__(self) -> str:
        return str(self.path)

    def __str__(self) -> str:
        return str(self.path)

    def _repr_html_(self) -> str:
        # In a frame of its own, because a page has styles and scripts.
        text = escape(self.path.read_text(encoding="utf-8"), quote=True)
        return f'<iframe srcdoc="{text}" width="100%" height="640" style="border:0"></iframe>'


def plot(*runs: str | Path, output: str | Path | None = None) -> Page:
    """Write the page of one run or several (see `write_report`), without predictions, for a notebook to show.

    Args:
        runs: folders of runs, their `save_path`.
        output: the HTML file; None means `curves.html` in the first run's folder.

    Raises:
        PalmError: no run is named, altair is missing, or `output` is not an HTML file.
        StorageError: a folder has no history, or `output` cannot be written.
    """
    if output is None and runs:
        output = Path(runs[0]) / PLOT_FILE
    return Page(write_report(runs, output, predict=False))
