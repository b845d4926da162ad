"""The command `palm`."""

from __future__ import annotations

import argparse
import os
import platform
import signal
import sys
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

from palm.cli.command import COMMANDS, Command
from palm.config.files import split_arguments
from palm.core.cache import explain_limits
from palm.core.component import did_you_mean
from palm.core.errors import EXIT_CODES, ExitCode, PalmError
from palm.core.io import REMEDIES
from palm.core.logging import fitted, logger, printable, set_verbosity, show_on_console
from palm.core.process import Stopped, ending_on_signals, import_torch
from palm.core.version import __version__

# isort: off
from palm.cli import projects, runs, models, reports  # noqa: F401 - in the order of `palm --help`
# isort: on

REMOVED = {
    "merge": " any more; use_ema averages the weights of a run",
    "plot": " any more; palm report RUN --no_predict writes the same page",
    "completion": " any more; palm --help, palm train --help_all and palm ls list all words",
}
"""What to do in place of a command that palm no longer has."""


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line; return the exit code."""
    for name in ("stdout", "stderr"):
        if getattr(sys, name) is None:  # it was closed
            setattr(sys, name, open(os.devnull, "w", encoding="utf-8"))  # noqa: SIM115, PTH123
    try:
        code = _run(sys.argv[1:] if arguments is None else list(arguments))
        sys.stdout.flush()
    except OSError as error:
        code = 128 + getattr(signal, "SIGPIPE", 13)
        if not isinstance(error, BrokenPipeError):
            if error.filename is not None or error.errno not in REMEDIES:  # not an error of a stream
                raise
            code = ExitCode.REFUSED
            sys.stderr.write(f"error: cannot write the output: {REMEDIES[error.errno]}\n")
        # Python writes what is left in the buffer when it ends.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    return code


def _run(words: list[str]) -> int:
    show_on_console()
    set_verbosity("--quiet" in words, "--verbose" in words)
    logger.debug("palm %s, Python %s, %s", __version__, platform.python_version(), platform.platform())
    command, options = _parse([word for word in words if word not in ("--quiet", "--verbose")])
    try:
        with ending_on_signals(), explain_limits():
            _let_import_components(options)
            if command.uses_torch:
                import_torch()
            command.run(options)
    except PalmError as error:
        if failures := sys.modules.get("palm.core.group"):  # loaded if this is a rank of several
            with suppress(OSError, MemoryError):  # files or memory may be what ran out
                failures.record_failure(error)
        sys.stdout.flush()
        logger.debug("traceback of the error", exc_info=error)
        sys.stderr.write(fitted(f"error: {printable(str(error))}\n", sys.stderr))
        return ExitCode.REFUSED
    except KeyboardInterrupt as stop:
        sys.stderr.write("; ".join(["interrupted", *map(str, stop.args)]) + "\n")
        return 128 + signal.SIGINT
    except Stopped as stop:
        sys.stderr.write(f"{stop}\n")
        raise
    return ExitCode.DONE


def _let_import_components(options: argparse.Namespace) -> None:
    """Let a configuration or `--trust` name modules in its folder or in the working directory."""
    config = getattr(options, "run_of", None) or getattr(options, "config", None)
    if config or getattr(options, "trust", ()):
        folders = [str(Path(config or ".").absolute().parent), str(Path.cwd())]
        # At the end: a user's file does not hide an installed module.
        sys.path += [folder for folder in dict.fromkeys(folders) if folder not in sys.path]


def _parse(words: list[str]) -> tuple[Command, argparse.Namespace]:
    """Parse a command line; settings of a configuration are collected in `settings`."""
    if not words or words[0] not in COMMANDS:
        parser = _parser()
        if words and not words[0].startswith("-"):
            remedy = REMOVED.get(words[0], did_you_mean(words[0], COMMANDS))
            parser.error(f"there is no command {words[0]!r}{remedy}")
        parser.parse_args(words)  # --help, --version, or an error: this exits
    command = COMMANDS[words[0]]
    is_whole = not {"--help_all", "--help-all"}.isdisjoint(words)
    if is_whole or not {"-h", "--help"}.isdisjoint(words):
        command.parser("" if command.epilog is None else command.epilog(is_whole)).print_help()
        raise SystemExit(ExitCode.DONE)
    parser = command.parser()
    takes_value = {name[2:]: each.nargs != 0 for each in parser._actions for name in each.option_strings}
    flags = [name for name, takes in takes_value.items() if not takes]
    own, settings = split_arguments(words[1:], takes_value, flags)
    if settings and not command.takes_settings:
        parser.error(f"unrecognized arguments: {' '.join(settings)}")
    return command, parser.parse_args(own, argparse.Namespace(settings=settings))


def _parser() -> argparse.ArgumentParser:
    """Return the parser of `palm` itself; every command parses its own arguments."""
    codes = "; ".join(f"{code} {meaning}" for code, meaning in EXIT_CODES.items())
    parser = argparse.ArgumentParser(
        prog="palm",
        description="Multi-task training on one shared BERT or ERNIE encoder.",
        epilog=f"Exit codes: {codes}; 128 + N: ended by signal N.",
    )
    parser.add_argument("--version", action="version", version=f"palm {__version__}")
    parser.add_argument("--quiet", action="store_true", help="only show warnings; works with every command")
    parser.add_argument(
        "--verbose",
        action="store_true",
        help="also show when and where each message was written, and the traceback of an error",
    )
    commands = parser.add_subparsers(metavar="command", required=True)
    for command in COMMANDS.values():
        commands.add_parser(command.name, help=command.help)
    return parser
