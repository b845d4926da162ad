"""Commands that show runs that are done: plot, report, diff."""

from __future__ import annotations

import argparse
import dataclasses
import os
import shutil
import sys

from palm.cli import command as cli
from palm.core.errors import ExitCode

A_RUN = "the folder of a run, its save_path"


@cli.command(
    "plot",
    "plot the curves of runs",
    [
        cli.option("runs", metavar="RUN", nargs="+", help=A_RUN),
        cli.output("the page; curves.html in the first run's folder where absent"),
        cli.flag("--terminal", "draw in the terminal instead"),
    ],
)
def plot_runs(options: argparse.Namespace) -> None:
    """Draw loss and dev scores of every task on a page. Runs that differ in nothing but the seed are drawn as
    their mean with each of them behind it, others beside each other.
    """
    from palm.report.plot import plot, terminal_plot

    if options.terminal:
        width = min(shutil.get_terminal_size().columns, 120)
        colour = sys.stdout.isatty() and "NO_COLOR" not in os.environ
        cli.write_line(terminal_plot(*options.runs, width=width, colour=colour))
        return
    cli.write_line(plot(*options.runs, output=options.output))


@cli.command(
    "report",
    "show on one page what a run was and where it is wrong",
    [
        cli.option("run", metavar="RUN", help=A_RUN),
        cli.output("the page; report.html in the run's folder where absent"),
        cli.flag("--no_predict", "use only what the run wrote down, and predict nothing"),
        cli.repeated("--dev_file", "TASK=FILE", "the data to predict, in place of what the run names"),
        cli.TRUST,
    ],
)
def report(options: argparse.Namespace) -> None:
    """Write one HTML file that shows what a run was trained on, how it went, and where its models are wrong:
    for the latter, the best model of every task (or its last) predicts its dev_file, if that is still what
    the run was evaluated on, or lies in its folder. The page needs no network and runs no script, so it can
    be sent to others; it has rows of the dev data in it.
    """
    from palm.report.page import write_report

    predict = not options.no_predict
    dev_files = dict(cli.pairs_of(options.dev_file, "--dev_file", "TASK=FILE"))
    page = write_report(
        options.run, options.output, predict=predict, dev_files=dev_files, trust=options.trust
    )
    cli.write_line(page)


@cli.command(
    "diff",
    "tell what differs between two runs",
    [
        cli.option("first", metavar="RUN", help=A_RUN),
        cli.option("second", metavar="RUN", help="that of another"),
        cli.JSON,
    ],
    only_reads=True,
)
def diff(options: argparse.Namespace) -> None:
    """Tell what differs between two runs: settings, with the file and line that set them, data, versions,
    steps and scores; save_path, in which any two runs differ, is left out. The exit code is 0 where nothing
    differs, 1 where something does, and 2 where there is no run.
    """
    from palm.core.files.untrusted import printable
    from palm.report.difference import difference_table, differences

    found = differences(options.first, options.second)
    if options.json:
        cli.write_line(cli.json_text([dataclasses.asdict(difference) for difference in found]))
    else:
        cli.write_line(printable(difference_table(found, options.first, options.second)))
    if found:
        raise SystemExit(ExitCode.FOUND)
