"""`palm sweep`: the settings with the best dev scores."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from palm.cli.command import Command, Settings, add_config, find_components
from palm.cli.grid import add_grid, run_one


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.usage = (
        "palm sweep CONFIG [--task_dir DIR] --grid NAME=V1,V2 ... [--workers N] [--output DIR]\n"
        "       palm sweep CONFIG [--task_dir DIR] --trials N [--grid NAME=V1,V2 ...] [--space FILE]\n"
        "       [--range NAME=LOW..HIGH[:log] ...] [--keep_models] [--overwrite] [--SETTING VALUE ...]"
    )
    parser.description = (
        "Train with different settings and write those with the best dev scores as a configuration. Without "
        "--trials every combination is tried; with it, Optuna chooses so many, and gives up on bad ones. "
        "What is done is kept: the same command goes on after an interruption."
    )
    add_config(parser, required=True)
    parser.add_argument(
        "--grid",
        metavar="NAME=V1,V2",
        action="append",
        default=[],
        help="values of a setting, of one task as TASK.NAME; may be repeated",
    )
    parser.add_argument(
        "--range",
        metavar="NAME=LOW..HIGH[:log]",
        action="append",
        default=[],
        help="a range that Optuna draws from; may be repeated",
    )
    parser.add_argument(
        "--space", type=Path, metavar="FILE", help="a YAML file with lists and ranges by setting"
    )
    parser.add_argument("--trials", type=int, metavar="N", help="how many points Optuna chooses")
    add_grid(parser)


def run(options: argparse.Namespace, settings: Settings) -> None:
    if options.one_run:
        run_one(options)
        return
    from palm.search.space import grid_words, range_words, read_space
    from palm.search.sweep import sweep

    find_components(options.config)
    space = {} if options.space is None else read_space(options.space)
    found = sweep(
        options.config,
        {**space, **grid_words(options.grid), **range_words(options.range)},
        options.task_dir,
        trials=options.trials,
        workers=options.workers,
        output=options.output,
        overwrite=options.overwrite,
        keep_models=options.keep_models,
        argv=settings,
    )
    sys.stdout.write(f"{found}\n")


COMMAND = Command(
    "sweep", "find the settings with the best dev scores", add_arguments, run, takes_settings=True
)
