"""`palm report`: one page about a run."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from palm.cli.command import Command, Settings, add_trust


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.description = (
        "Write one HTML file that shows what a run was trained on, how it went, and where its models are "
        "wrong: for the latter, the best model of every task (or its last) predicts its dev_file. It needs "
        "no network and runs no script, so it can be sent to others; it has rows of the dev data in it."
    )
    parser.add_argument("run", metavar="RUN", help="the folder of a run, its save_path")
    parser.add_argument(
        "--output", metavar="FILE", type=Path, help="the page; report.html in the run's folder where absent"
    )
    parser.add_argument(
        "--no-predict", action="store_true", help="use only what the run wrote down, and predict nothing"
    )
    add_trust(parser)


def run(options: argparse.Namespace, settings: Settings) -> None:  # noqa: ARG001
    from palm.report.page import write_report

    file = write_report(options.run, options.output, predict=not options.no_predict, trust=options.trust)
    sys.stdout.write(f"{file}\n")


COMMAND = Command("report", "show on one page what a run was and where it is wrong", add_arguments, run)
