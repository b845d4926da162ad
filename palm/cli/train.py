"""`palm train`: a configuration's tasks, trained."""

from __future__ import annotations

import argparse

from palm.cli import check
from palm.cli.command import Command, Settings, add_config, find_components
from palm.core.errors import PalmError


def add_arguments(parser: argparse.ArgumentParser) -> None:
    from palm.config import help_text
    from palm.controller.plan import HELP, NO_SETTINGS

    parser.usage = "palm train CONFIG [--task_dir DIR] [--dry_run] [--SETTING VALUE ...]"
    parser.epilog = help_text(HELP, NO_SETTINGS)
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    add_config(parser, required=True)
    parser.add_argument("--dry_run", action="store_true", help="do as `palm check` and train nothing")
    check.add_check_options(parser)


def run(options: argparse.Namespace, settings: Settings) -> None:
    if options.dry_run:
        check.run(options, settings)
        return
    given = [name for name in ("json", "html", "strict", "no_measure") if getattr(options, name)]
    if given:
        raise PalmError(f"--{', --'.join(given)}: goes with --dry_run, or with palm check")
    from palm.controller import Controller

    find_components(options.config)
    Controller(options.config, options.task_dir, argv=settings).train()


COMMAND = Command("train", "train the tasks of a configuration", add_arguments, run, takes_settings=True)
