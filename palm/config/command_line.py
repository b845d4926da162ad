"""The program's arguments as settings: `--name value`, `--name=value`, `--flag`, `--task.name value`."""

from __future__ import annotations

import sys
from collections.abc import Collection, Sequence
from pathlib import Path

from palm.config.problems import Problems
from palm.config.values import Flag, Plain, Setting
from palm.core.program import is_program


class HelpRequested(Exception):  # noqa: N818 - nothing is wrong; the caller prints the help and ends
    """The arguments hold `--help` or `-h`."""


def program_arguments() -> list[str]:
    """The arguments of the running script; none in a notebook, an interactive session or under pytest."""
    return sys.argv[1:] if is_program() else []


def read_arguments(words: Sequence[str], ignore: Collection[str], problems: Problems) -> dict[str, Setting]:
    """The settings among the arguments, by name; the last of several with one name counts.

    Args:
        words: the arguments, without the program's name.
        ignore: options that belong to somebody else.
        problems: receives the arguments that are no options.

    Raises:
        HelpRequested: for `--help` or `-h`.
    """
    found: dict[str, Setting] = {}
    rest = list(words)
    while rest:
        word = rest.pop(0)
        if word in ("--help", "-h"):
            raise HelpRequested
        if not word.startswith("--") or word.strip("-=") == "":
            problems.add(f"command line: {word!r} belongs to no option; write --name value")
            continue
        name, equals, value = word[2:].partition("=")
        task, dot, setting = name.rpartition(".")
        name = task + dot + setting.replace("-", "_")
        given: Plain | Flag = Plain(value)
        if not equals:
            given = Plain(rest.pop(0)) if rest and not rest[0].startswith("--") else Flag()
        if name not in ignore:
            found[name] = Setting(given, f"--{name}", Path.cwd())
    return found
