"""What commands that train a folder of runs have in common."""

from __future__ import annotations

import argparse
from pathlib import Path

from palm.cli.command import find_components


def add_grid(parser: argparse.ArgumentParser) -> None:
    """The arguments of a folder of runs."""
    parser.add_argument("--workers", type=int, metavar="N", help="runs at a time; one a GPU where absent")
    parser.add_argument("--output", type=Path, metavar="DIR", help="the folder of the runs")
    parser.add_argument("--keep_models", action="store_true", help="keep the models of runs that are done")
    parser.add_argument("--overwrite", action="store_true", help="remove the runs of other settings there")
    # With these the command is one of its own runs.
    parser.add_argument("--one_run", action="store_true", help=argparse.SUPPRESS)
    parser.add_argument("--of", help=argparse.SUPPRESS)


def run_one(options: argparse.Namespace) -> None:
    """Train the run whose configuration is named."""
    from palm.grid.worker import work

    find_components(options.of or "config.yaml")
    work(Path(options.config).parent)
