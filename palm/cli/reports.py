"""Commands that show finished runs: report, diff."""

from __future__ import annotations

import argparse

from palm.cli import command as cli
from palm.core.errors import ExitCode

A_RUN = "the folder of a run, its save_path"


@cli.command(
    "report",
    "show runs and the errors of their models on one page",
    [
        cli.option("runs", metavar="RUN", nargs="+", help=f"{A_RUN}; or that of a comparison or sweep"),
        cli.output("the page (default: report.html in the first run's folder)"),
        cli.flag("--no_predict", "use only what the run recorded, and predict nothing"),
        cli.repeated("--dev_file", "TASK=FILE", "the data to predict instead of the run's dev_file"),
        cli.TRUST,
    ],
)
def report(options: argparse.Namespace) -> None:
    """Write one HTML file that shows what a run was trained on, how it went, and where its models are wrong.
    For the latter, the best model of every task (or its last) predicts its dev_file, if that is still what
    the run was evaluated on, or is in the run's folder. Several runs, a comparison or a sweep are one page
    with a table and their curves. A page requests nothing, so it can be sent to others; it contains rows of
    the dev data.
    """
    from palm.report.page import write_report

    predict = not options.no_predict
    dev_files = dict(cli.pairs_of(options.dev_file, "--dev_file", "TASK=FILE"))
    page = write_report(
        options.runs, options.output, predict=predict, dev_files=dev_files, trust=options.trust
    )
    cli.write_line(page)


@cli.command(
    "diff",
    "show the differences between two runs",
    [
        cli.option("first", metavar="RUN", help=A_RUN),
        cli.option("second", metavar="RUN", help="the folder of another run"),
    ],
    uses_torch=False,
)
def diff(options: argparse.Namespace) -> None:
    """Show the differences between two runs: settings, with the file and line that set them, data, versions,
    steps and scores. save_path, which always differs, is left out. The exit code is 0 if nothing differs, 1
    if something does, and 2 if there is no such run.
    """
    from palm.report.difference import difference_table, differences

    found = differences(options.first, options.second)
    cli.write_line(difference_table(found, options.first, options.second))
    if found:
        raise SystemExit(ExitCode.FOUND)
