"""`palm train`: a configuration's tasks, trained."""

from __future__ import annotations

import argparse

from palm.cli.command import Command, Settings, add_config, find_components


def add_arguments(parser: argparse.ArgumentParser) -> None:
    from palm.config import help_text
    from palm.controller.plan import HELP, NO_SETTINGS

    parser.usage = "palm train CONFIG [--task_dir DIR] [--SETTING VALUE ...]"
    parser.epilog = help_text(HELP, NO_SETTINGS)
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    add_config(parser, required=True)


def run(options: argparse.Namespace, settings: Settings) -> None:
    from palm.controller import Controller

    find_components(options.config)
    Controller(options.config, options.task_dir, argv=settings).train()


COMMAND = Command("train", "train the tasks of a configuration", add_arguments, run, takes_settings=True)
