"""The command `palm`: what can be done from a shell, one module a command."""

from __future__ import annotations

import argparse
import platform
import signal
import sys
from collections.abc import Sequence

from palm.cli import (
    check,
    compare,
    completion,
    convert,
    diff,
    download,
    evaluate,
    export,
    init,
    inspect,
    ls,
    merge,
    plot,
    predict,
    report,
    sweep,
    train,
    verify_resume,
)
from palm.cli.command import Command, Settings
from palm.config.command_line import separated
from palm.core.errors import PalmError
from palm.core.files.untrusted import printable
from palm.core.logging import logger, set_verbosity, show_on_console
from palm.core.signals import Stopped, ending_on_signals
from palm.core.version import __version__

COMMANDS = {
    command.name: command
    for command in (
        *(
            init.COMMAND,
            check.COMMAND,
            train.COMMAND,
            predict.COMMAND,
            evaluate.COMMAND,
            verify_resume.COMMAND,
        ),
        *(export.COMMAND, convert.COMMAND, download.COMMAND, inspect.COMMAND, merge.COMMAND),
        *(plot.COMMAND, report.COMMAND, diff.COMMAND, compare.COMMAND, sweep.COMMAND, ls.COMMAND),
    )
}
COMMANDS["completion"] = completion.command_of(COMMANDS)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line; returns the exit code: 0, or 2 with one message for what a user can mend."""
    show_on_console()
    words = sys.argv[1:] if arguments is None else list(arguments)
    set_verbosity("--quiet" in words, "--verbose" in words)
    logger.debug("palm %s, Python %s, %s", __version__, platform.python_version(), platform.platform())
    words = [word for word in words if word not in ("--quiet", "--verbose")]
    if not words or words[0] not in COMMANDS:
        _parser().parse_args(words)  # --help, --version, or a mistake: it ends here
    command = COMMANDS[words[0]]
    options, settings = _parsed(command, words[1:])
    try:
        with ending_on_signals():
            command.run(options, settings)
    except PalmError as error:
        from palm.distributed import record_failure

        record_failure(error)
        sys.stdout.flush()
        logger.debug("where the error came from", exc_info=error)
        sys.stderr.write(f"error: {printable(str(error))}\n")
        return 2
    except KeyboardInterrupt as stop:
        sys.stderr.write("; ".join(["interrupted", *map(str, stop.args)]) + "\n")
        return 128 + signal.SIGINT
    except Stopped as stop:
        sys.stderr.write(f"{stop}\n")
        raise
    return 0


def _parser() -> argparse.ArgumentParser:
    """Of `palm` itself; the arguments of a command are for the command's own."""
    parser = argparse.ArgumentParser(
        prog="palm", description="Multi-task training on one shared BERT or ERNIE encoder."
    )
    parser.add_argument("--version", action="version", version=f"palm {__version__}")
    parser.add_argument("--quiet", action="store_true", help="show warnings only; goes with every command")
    parser.add_argument(
        "--verbose",
        action="store_true",
        help="show also when and where each message was written, and of an error its traceback",
    )
    commands = parser.add_subparsers(metavar="command", required=True)
    for command in COMMANDS.values():
        commands.add_parser(command.name, help=command.help)
    return parser


def _parsed(command: Command, words: Sequence[str]) -> tuple[argparse.Namespace, Settings]:
    """The command's own options, and the settings of a configuration among its words."""
    # Without allow_abbrev=False, a setting whose name begins an option's would be taken for the option.
    parser = argparse.ArgumentParser(prog=f"palm {command.name}", allow_abbrev=False)
    command.add_arguments(parser)
    if command.takes_settings:
        own = {action.dest: action.nargs == 0 for action in parser._actions}
        commands, settings = separated(words, own, flags=[name for name, is_flag in own.items() if is_flag])
        return parser.parse_args(commands), settings
    options, unknown = parser.parse_known_args(words)
    if unknown:
        parser.error(f"palm {command.name} does not know {' '.join(unknown)}")
    return options, unknown
