"""Curves of runs: the page of several runs, in a file, in a notebook, or as text for a terminal."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from html import escape
from pathlib import Path

from palm.core.component import path_problems, raise_any
from palm.core.errors import PalmError
from palm.core.io import write_text
from palm.core.logging import printable
from palm.report.curves import Curve
from palm.report.run import read_run
from palm.report.several import curves_of, named, page_of_several

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
    """Write a page with the scores of runs, and with loss and dev scores of every task over global steps.

    Runs whose configurations differ only in the seed have the same colour.

    Args:
        runs: folders of runs, their `save_path`.
        output: the HTML file; None means `curves.html` in the first run's folder.

    Raises:
        PalmError: no run is named, jinja2 or altair is missing, or `output` is not an HTML file.
        StorageError: a folder has no history, or `output` cannot be written.
    """
    raise_any([] if output is None else path_problems(output=output))
    folders = _folders(runs)
    file = folders[0] / PLOT_FILE if output is None else Path(output)
    if file.suffix != ".html":
        raise PalmError(f"{file}: curves are written as an HTML page; give a file name that ends in .html")
    write_text(file, page_of_several(folders))
    return Page(file)


def _folders(runs: Sequence[str | Path]) -> list[Path]:
    raise_any(line for run in runs for line in path_problems(run=run))
    if not runs:
        raise PalmError("no run was named; name the folder of at least one run, its save_path")
    return [Path(run) for run in runs]


def terminal_plot(*runs: str | Path, width: int = 100, height: int = 15, colour: bool = True) -> str:
    """Draw the curves of `plot` as text.

    Args:
        runs: folders of runs, their `save_path`.
        width: of a chart, in characters.
        height: of a chart, in lines.
        colour: use the terminal's colours; otherwise every curve is drawn with a letter.
    """
    found = [read_run(folder) for folder in _folders(runs)]
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
