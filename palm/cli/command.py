"""Commands of `palm` as values: a name, help, options, and the function that runs it.

A function imports what it needs when it runs, because `palm --help`, `init`, `diff` and others need no torch,
whose import takes a second.
"""

from __future__ import annotations

import argparse
import inspect
import json
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from operator import methodcaller
from pathlib import Path
from typing import Any

from palm.core.errors import PalmError
from palm.core.logging import fitted, printable, shows_colour

Run = Callable[[argparse.Namespace], None]

Epilog = Callable[[bool], str]

Option = Callable[[argparse.ArgumentParser], object]
"""Adds an argument to a parser."""


def option(*names: str, **keywords: Any) -> Option:
    """Declare an argument; parameters as for `ArgumentParser.add_argument`."""
    return methodcaller("add_argument", *names, **keywords)


def flag(name: str, meaning: str) -> Option:
    """Declare an option without a value."""
    return option(name, action="store_true", help=meaning)


def repeated(name: str, metavar: str, meaning: str) -> Option:
    """Declare an option that may be repeated; its values are collected in a list."""
    return option(name, metavar=metavar, action="append", default=[], help=meaning)


def path(text: str) -> Path:
    """Parse the path of an option; `Path` takes the empty text for the working directory."""
    if not text:
        raise argparse.ArgumentTypeError("the path is empty")
    return Path(text)


def output(what: str, **keywords: Any) -> Option:
    """Declare `--output`, the destination of what a command writes."""
    return option("--output", metavar="OUT", type=path, help=f"where to write {what}", **keywords)


@dataclass(frozen=True)
class Command:
    """A command of `palm`.

    Args:
        name: the word after `palm`.
        help: its line in `palm --help`.
        run: called with the parsed arguments, and the settings of a configuration in `settings`; its
            docstring is the description.
        options: its arguments.
        takes_settings: whether settings of a configuration may follow.
        uses_torch: whether it always needs torch.
        epilog: returns the end of its `--help`, or with True that of its `--help_all`.
    """

    name: str
    help: str
    run: Run
    options: Sequence[Option]
    takes_settings: bool = False
    uses_torch: bool = True
    epilog: Epilog | None = None

    def parser(self, epilog: str = "") -> argparse.ArgumentParser:
        """Return a parser of its arguments."""
        # With abbreviations, a setting whose name is a prefix of an option's would be read as the option.
        parser = argparse.ArgumentParser(
            prog=f"palm {self.name}",
            allow_abbrev=False,
            description=inspect.getdoc(self.run),
            epilog=epilog,
            formatter_class=argparse.RawDescriptionHelpFormatter if self.epilog else argparse.HelpFormatter,
        )
        for add in self.options:
            add(parser)
        if self.takes_settings:
            parser.usage = f"{parser.format_usage().removeprefix('usage: ').rstrip()} [--SETTING VALUE ...]"
        return parser


COMMANDS: dict[str, Command] = {}
"""Commands by name, in the order of `palm --help`."""


def command(name: str, help: str, options: Sequence[Option], **more: Any) -> Callable[[Run], Run]:
    """Return a decorator that registers a function as a command; arguments as for `Command`."""

    def register(run: Run) -> Run:
        COMMANDS[name] = Command(name, help, run, options, **more)
        return run

    return register


# ---- Options of several commands ----

TASK_DIR = option("--task_dir", default=".", help="the folder of the task files, beside CONFIG")
CONFIG = (option("config", help="the global YAML file"), TASK_DIR)
OPTIONAL_CONFIG = (option("config", nargs="?", help="the global YAML file"), TASK_DIR)

JSON = flag("--json", "as JSON")
OVERWRITE = flag("--overwrite", "replace OUT, if palm wrote everything in it")
TRUST = repeated(
    "--trust",
    "MODULE",
    "import components of the saved model from this module, package or class; may be repeated",
)

ENGINE = (
    option(
        "--engine",
        choices=["torch", "onnx"],
        default="torch",
        help="for a saved model: the inference engine; onnx is onnxruntime on the CPU (extra onnx)",
    ),
    option("--device", choices=["auto", "cpu", "cuda"], help="where to compute (default: auto)"),
    option("--precision", help="auto, fp32 or bf16; with --engine onnx: auto, fp32 or int8 (default: auto)"),
    TRUST,
)

SAVED_MODEL = (
    option("--inference_model_dir", help="the saved model, for one task"),
    option("--model", type=path, help="the saved model"),
    *ENGINE,
)

GRID = (
    option("--workers", type=int, metavar="N", help="runs at a time (default: one per GPU)"),
    flag("--ray", "train the runs on a Ray cluster, which sees the same files"),
    output("the runs: a folder; palm compare also takes the file of a table, .csv or .tex"),
)
"""Options of commands that train a folder of runs."""


# ---- Shared by the commands ----


_END = r"(?= than alone|[;,:]| {2}| \(|$)"
"""The end of a word that is coloured, so that a label such as `helpful`, before its count, is not."""

COLOURS = {
    rf"(?m)\b(better|helpful|done){_END}|\bno problems\b": "green",
    rf"(?m)\b(worse|harmful|failed){_END}|^error\b|\b\d+ errors?\b": "red",
    rf"(?m)\b(undecided|perhaps \w+){_END}|^warning\b|\b\d+ warnings?\b": "yellow",
}
"""Pattern -> the colour of words in the output on a terminal."""


def write_line(text: object) -> None:
    """Write a text to stdout; names from files cannot control the terminal, where long lines are broken."""
    shown = fitted(printable(str(text)), sys.stdout)
    if not shows_colour(sys.stdout):
        sys.stdout.write(f"{shown}\n")
        return
    from rich.console import Console
    from rich.text import Text

    coloured = Text(shown)
    for pattern, colour in COLOURS.items():
        coloured.highlight_regex(pattern, colour)
    Console(soft_wrap=True).print(coloured)


def write_json(value: Any, indent: int | None = 2) -> None:
    """Write a value to stdout as JSON, in ASCII if other characters are unprintable."""
    text = json.dumps(value, ensure_ascii=False, indent=indent)
    sys.stdout.write(f"{text if text == printable(text) else json.dumps(value, indent=indent)}\n")


def pairs_of(words: Sequence[str], name: str, form: str) -> list[tuple[str, str]]:
    """Split words such as `TASK=FILE` at the equals sign.

    Raises:
        PalmError: a word has another form.
    """
    pairs = [word.partition("=") for word in words]
    if wrong := ["".join(pair) for pair in pairs if not all(pair)]:
        raise PalmError(f"{name} should be {form}, not {wrong[0]!r}")
    return [(left, right) for left, _, right in pairs]
