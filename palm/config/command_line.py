"""Command-line arguments as settings: `--name value`, `--name=value`, `--flag`, `--task.name value`."""

from __future__ import annotations

import sys
from collections.abc import Collection, Iterator, Sequence
from pathlib import Path
from typing import Any

from palm.config.values import Flag, Plain, Setting
from palm.core.invocation import is_program


class HelpRequested(Exception):  # noqa: N818 - not an error; the caller prints the help and exits
    """The arguments contain `--help` or `-h`."""


def program_arguments() -> list[str]:
    """Return the arguments of the running script; none in a notebook, an interactive session or a test."""
    return sys.argv[1:] if is_program() else []


def read_arguments(words: Sequence[str], problems: list[str]) -> dict[str, Setting]:
    """Return the settings among the arguments, by name; the last one of a name counts.

    Args:
        words: the arguments, without the program's name.
        problems: receives the arguments that are not options.

    Raises:
        HelpRequested: on `--help` or `-h`.
    """
    found: dict[str, Setting] = {}
    for name, value in _options(words):
        if value in ("--help", "-h") and name is None:
            raise HelpRequested
        if name is None:
            problems.append(f"command line: unexpected argument {value!r}; write --name value")
        else:
            found[name] = Setting(value, f"--{name}", Path.cwd())
    return found


def split_arguments(
    words: Sequence[str], own: Collection[str], flags: Collection[str] = ()
) -> tuple[list[str], list[str]]:
    """Split words into a command's options and positional arguments, and all others, which are settings.

    A value stays with its option, so `--batch_size 8 config.yaml` names one file.

    Args:
        words: all words after the command.
        own: names of the command's options.
        flags: those of them without a value, so that the next word is not taken for it.
    """
    commands: list[str] = []
    settings: list[str] = []
    for name, value in _options(words, flags):
        if name is None:
            commands.append(value)
            continue
        option = f"--{name}" if isinstance(value, Flag) else f"--{name}={value}"
        (commands if name in own else settings).append(option)
    return commands, settings


def _options(words: Sequence[str], flags: Collection[str] = ()) -> Iterator[tuple[str | None, Any]]:
    """Yield (name, value) for each option (`--name=value` or `--name value`), and (None, word) for others."""
    rest = list(words)
    while rest:
        word = rest.pop(0)
        if not word.startswith("--") or word == "--help" or not word.strip("-="):
            yield None, word
            continue
        name, equals, value = word[2:].partition("=")
        task, dot, setting = name.rpartition(".")
        name = task + dot + setting.replace("-", "_")
        if equals:
            yield name, Plain(value)
        # A value may begin with a single dash, such as -1.
        elif name not in flags and rest and not rest[0].startswith("--"):
            yield name, Plain(rest.pop(0))
        else:
            yield name, Flag()
