"""The program's arguments as settings: `--name value`, `--name=value`, `--flag`, `--task.name value`."""

from __future__ import annotations

import sys
from collections.abc import Collection, Sequence
from pathlib import Path
from typing import Any

from palm.config.problems import Problems
from palm.config.values import Flag, Plain, Setting
from palm.core.invocation import is_program


class HelpRequested(Exception):  # noqa: N818 - nothing is wrong; the caller prints the help and ends
    """The arguments hold `--help` or `-h`."""


def program_arguments() -> list[str]:
    """The arguments of the running script; none in a notebook, an interactive session or under pytest."""
    return sys.argv[1:] if is_program() else []


def read_arguments(words: Sequence[str], problems: Problems) -> dict[str, Setting]:
    """The settings among the arguments, by name; the last of several with one name counts.

    Args:
        words: the arguments, without the program's name.
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
        name, value = _option(word, rest)
        found[name] = Setting(value, f"--{name}", Path.cwd())
    return found


def separated(
    words: Sequence[str], own: Collection[str], flags: Collection[str] = ()
) -> tuple[list[str], list[str]]:
    """The words of a command's own options and of no option, and those of all others, which are settings.

    A value stays with its option, so `--batch_size 8 config.yaml` names one file.

    Args:
        words: what follows the command.
        own: the names of its options.
        flags: those of them that take no value, so that the word behind one is not its value.
    """
    commands: list[str] = []
    settings: list[str] = []
    rest = list(words)
    while rest:
        word = rest.pop(0)
        if not word.startswith("--") or word == "--help":
            commands.append(word)
            continue
        if word[2:].replace("-", "_") in flags:
            commands.append(f"--{word[2:].replace('-', '_')}")
            continue
        name, value = _option(word, rest)
        option = f"--{name}" if isinstance(value, Flag) else f"--{name}={value}"
        (commands if name in own else settings).append(option)
    return commands, settings


def _option(word: str, rest: list[str]) -> tuple[str, Any]:
    """The option's name, and its value: after `=`, or the next word, which is taken off `rest`."""
    name, equals, value = word[2:].partition("=")
    task, dot, setting = name.rpartition(".")
    name = task + dot + setting.replace("-", "_")
    if equals:
        return name, Plain(value)
    return name, Plain(rest.pop(0)) if rest and not rest[0].startswith("--") else Flag()
