"""Curves of runs: the page of several runs, in a file, in a notebook, or as text for a terminal."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from html import escape
from pathlib import Path

from palm.core.errors import PalmError
from palm.core.logging import printable
from palm.report.curves import Curve
from palm.report.page import folders_of, write_report
from palm.report.run import read_run
from palm.report.several import curves_of, named

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


def terminal_plot(*runs: str | Path, width: int = 100, height: int = 15, colour: bool = True) -> str:
    """Draw the curves of `plot` as text.

    Args:
        runs: folders of runs, their `save_path`.
        width: of a chart, in characters.
        height: of a chart, in lines.
        colour: use the terminal's colours; otherwise every curve is drawn with a letter.
    """
    found = [read_run(folder) for folder in folders_of(runs)]
    try:
        import plotext
    except ImportError:
        raise PalmError("plots in a terminal need plotext: pip install 'palm-torch[plot]'") from None
    plotext.terminal.limit(width=True, height=False)  # text may be longer than the screen

    def drawn(title: str, curves: Sequence[Curve]) -> str:
        figure = plotext.figure
        figure.clear()
        figure.theme("simple" if colour else "colorless")
        # The names of several curves are listed above them, one per line.
        above = 2 * len(curves) + 4 if len(curves) > 1 else 0
        figure.plot_size(width, height + above)
        figure.title(printable(title))
        for number, curve in enumerate(curves):
            marker = "hd" if colour else "abcdefghijklmnop"[number % 16]
            signal = figure.signal(*map(list, zip(*curve.points, strict=True)), marker=marker).lines()
            figure.draw(signal.label(printable(curve.name)[: width - 20]) if above else signal)
        values = [value for curve in curves for _, value in curve.points]
        room = (max(values) - min(values)) * (1 + above / height)
        figure.ruler("y").lim(min(values), min(values) + (room or 1))
        text = str(figure.build())
        return text if colour else str(plotext.uncolorize(text))

    charts = curves_of(found, *named(found)[:2])
    with_points = ((title, [curve for curve in own if curve.points]) for title, _, own in charts)
    return "\n".join(drawn(title, own) for title, own in with_points if own)
