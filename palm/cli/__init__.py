"""The command `palm`: what can be done from a shell, one module a command."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence

from palm.cli import convert, download, evaluate, export, inspect, plot, predict, report, train
from palm.core.errors import PalmError
from palm.core.logging import show_on_console
from palm.core.version import __version__
from palm.distributed import record_failure

COMMANDS = (
    *(train.COMMAND, predict.COMMAND, evaluate.COMMAND),
    *(export.COMMAND, convert.COMMAND, download.COMMAND, inspect.COMMAND),
    plot.COMMAND,
    report.COMMAND,
)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line; returns the exit code: 0, or 2 with one message for what a user can mend."""
    show_on_console()
    parser = _parser()
    options, settings = parser.parse_known_args(arguments)
    if settings and not options.command.takes_settings:
        parser.error(f"palm {options.command.name} does not know {' '.join(settings)}")
    try:
        options.command.run(options, settings)
    except PalmError as error:
        record_failure(error)
        sys.stdout.flush()
        sys.stderr.write(f"error: {error}\n")
        return 2
    except KeyboardInterrupt as stop:
        sys.stderr.write("; ".join(["interrupted", *map(str, stop.args)]) + "\n")
        return 130
    return 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="palm", description="Multi-task training on one shared BERT or ERNIE encoder."
    )
    parser.add_argument("--version", action="version", version=f"palm {__version__}")
    commands = parser.add_subparsers(metavar="command", required=True)
    for command in COMMANDS:
        own = commands.add_parser(command.name, help=command.help)
        command.add_arguments(own)
        own.set_defaults(command=command)
    return parser
