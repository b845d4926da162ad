"""`palm compare`: whether the tasks of a configuration help each other."""

from __future__ import annotations

import argparse
import sys

from palm.cli.command import Command, Settings, add_config, find_components
from palm.cli.grid import add_grid, run_one
from palm.core.errors import PalmError


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.usage = (
        "palm compare CONFIG [--task_dir DIR] [--seeds N] [--budget target|total] [--test TASK=FILE ...]\n"
        "       [--also NAME:SETTING=VALUE ...]\n"
        "       [--model best|last] [--workers N] [--output DIR] [--keep_models] [--overwrite]\n"
        "       [--SETTING VALUE ...]"
    )
    parser.description = (
        "Train every target alone, all tasks together, and without each auxiliary, each with several seeds; "
        "say what helps what, and how sure that is. What is done is kept: the same command goes on after an "
        "interruption, and trains what is missing with more seeds."
    )
    add_config(parser, required=True)
    parser.add_argument(
        "--seeds", type=int, default=5, metavar="N", help="runs of every variant; 5 where absent"
    )
    parser.add_argument(
        "--budget",
        choices=["target", "total"],
        default="target",
        help="what is equal: the steps of each target (where absent), or the steps of all tasks together",
    )
    add_test(parser)
    parser.add_argument(
        "--also",
        metavar="NAME:SETTING=VALUE",
        action="append",
        default=[],
        help="a setting of one more variant with all tasks, such as each_step:tasks_per_step=all",
    )
    add_grid(parser)


def add_test(parser: argparse.ArgumentParser) -> None:
    """The arguments that say what runs are scored on."""
    parser.add_argument(
        "--test",
        metavar="TASK=FILE",
        action="append",
        default=[],
        help="data with labels to compare a target on; its dev_file where absent",
    )
    parser.add_argument(
        "--model",
        choices=["best", "last"],
        help="the model that is scored; where absent the best, if targets have a test file, else the last",
    )


def files_of(words: list[str]) -> dict[str, str]:
    """The files of `TASK=FILE`, by task.

    Raises:
        PalmError: a word of another form.
    """
    pairs = [word.partition("=") for word in words]
    if wrong := [word for word, (_, equals, file) in zip(words, pairs, strict=True) if not (equals and file)]:
        raise PalmError(f"--test takes TASK=FILE, not {wrong[0]!r}")
    return {task: file for task, _, file in pairs}


def variants_of(words: list[str]) -> dict[str, dict[str, str]]:
    """The settings of `NAME:SETTING=VALUE`, by name.

    Raises:
        PalmError: a word of another form.
    """
    found: dict[str, dict[str, str]] = {}
    for word in words:
        option, equals, value = word.partition("=")
        name, _, setting = option.partition(":")
        if not (name and setting and equals):
            raise PalmError(f"--also takes NAME:SETTING=VALUE, not {word!r}")
        found.setdefault(name, {})[setting] = value
    return found


def run(options: argparse.Namespace, settings: Settings) -> None:
    if options.one_run:
        run_one(options)
        return
    from palm.comparison.compare import compare

    find_components(options.config)
    found = compare(
        options.config,
        options.task_dir,
        seeds=options.seeds,
        budget=options.budget,
        test=files_of(options.test),
        model=options.model,
        workers=options.workers,
        output=options.output,
        overwrite=options.overwrite,
        keep_models=options.keep_models,
        also=variants_of(options.also),
        argv=settings,
    )
    sys.stdout.write(f"{found}\n")


COMMAND = Command("compare", "say whether tasks help each other", add_arguments, run, takes_settings=True)
