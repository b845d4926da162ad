"""`palm plot`: the curves of runs, as a picture or in the terminal."""

from __future__ import annotations

import argparse
import os
import shutil
import sys
from pathlib import Path

from palm.cli.command import Command, Settings
from palm.core.errors import PalmError


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.description = (
        "Plot loss and dev scores of every task. Runs that differ in nothing but the seed are drawn as "
        "their mean with its standard deviation, others beside each other."
    )
    parser.add_argument("runs", metavar="RUN", nargs="+", help="the folder of a run, its save_path")
    parser.add_argument(
        "--output",
        metavar="FILE",
        type=Path,
        help="the picture, .png or .svg (or .pdf); curves.png in the first run's folder where absent",
    )
    parser.add_argument("--terminal", action="store_true", help="draw in the terminal instead")


def run(options: argparse.Namespace, settings: Settings) -> None:  # noqa: ARG001
    from palm.report.plot import plot, terminal_plot

    if options.terminal:
        width = min(shutil.get_terminal_size().columns, 120)
        colour = sys.stdout.isatty() and "NO_COLOR" not in os.environ
        sys.stdout.write(terminal_plot(*options.runs, width=width, colour=colour) + "\n")
        return
    figure = plot(*options.runs)
    output = options.output or Path(options.runs[0]) / "curves.png"
    try:
        figure.savefig(output, dpi=150)
    except ValueError as error:
        raise PalmError(f"{output}: {error}") from None
    except OSError as error:
        raise PalmError(f"{output}: cannot be written ({error.strerror}); give another --output") from error
    sys.stdout.write(f"{output}\n")


COMMAND = Command("plot", "plot the curves of runs", add_arguments, run)
