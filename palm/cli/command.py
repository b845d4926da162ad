"""Commands of `palm` as values: a name, help, options, and the function that runs it.

A function imports what it needs when it runs, because `palm --help` and the commands that need no torch must
not wait for torch.
"""

from __future__ import annotations

import argparse
import inspect
import json
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from importlib.abc import MetaPathFinder
from importlib.machinery import ModuleSpec, PathFinder
from operator import methodcaller
from pathlib import Path
from types import ModuleType
from typing import Any

from palm.core.errors import PalmError
from palm.core.shown import printable

Run = Callable[[argparse.Namespace], None]

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
        epilog: returns the end of its `--help`.
        takes_settings: whether settings of a configuration may follow.
        only_reads: whether it only reads declarations and records, which does not need torch.
    """

    name: str
    help: str
    run: Run
    options: Sequence[Option]
    epilog: Callable[[], str] | None = None
    takes_settings: bool = False
    only_reads: bool = False

    def show_help(self) -> None:
        """Print the help of the command."""
        self.parser("" if self.epilog is None else self.epilog()).print_help()

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
        self.add_options(parser)
        if self.takes_settings:
            parser.usage = f"{parser.format_usage().removeprefix('usage: ').rstrip()} [--SETTING VALUE ...]"
        return parser

    def add_options(self, parser: argparse.ArgumentParser) -> None:
        """Add its arguments to a parser."""
        for add in self.options:
            add(parser)


COMMANDS: dict[str, Command] = {}
"""Commands by name, in the order of `palm --help`."""


def command(
    name: str, help: str, options: Sequence[Option], **more: bool | Callable[[], str]
) -> Callable[[Run], Run]:
    """Return a decorator that registers a function as a command; arguments as for `Command`."""

    def register(run: Run) -> Run:
        COMMANDS[name] = Command(name, help, run, options, **more)  # type: ignore[arg-type]
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

SAVED_MODEL = (
    option("--inference_model_dir", help="the saved model, for one task"),
    option("--model", type=path, help="the saved model"),
    option(
        "--engine",
        choices=["torch", "onnx"],
        default="torch",
        help="with --model: the inference engine; onnx is onnxruntime on the CPU (extra onnx)",
    ),
    option("--precision", help="auto, fp32 or bf16; with --engine onnx: auto, fp32 or int8 (default: auto)"),
    TRUST,
)

GRID = (
    option("--workers", type=int, metavar="N", help="runs at a time (default: one per GPU)"),
    output("the runs: a folder"),
    flag("--keep_models", "keep the models of finished runs"),
    flag("--overwrite", "remove runs with other settings from OUT"),
    # The command calls itself with these to train one of its runs.
    flag("--one_run", argparse.SUPPRESS),
    option("--of", help=argparse.SUPPRESS),
)
"""Options of commands that train a folder of runs."""


# ---- Shared by the commands ----


class _ComponentFinder(MetaPathFinder):
    """Finds the user's modules, for palm's registries and for each other, after all other finders.

    Libraries import optional packages by name (triton, dill); a user's file of that name is not found for
    them, not even if their environment is below the user's folder.
    """

    def __init__(self) -> None:
        self.folders: list[str] = []
        self._importers = {"palm.core.registry", "palm.cli.starter.catalogue"}

    def find_spec(
        self,
        fullname: str,
        path: Sequence[str] | None,
        target: ModuleType | None = None,  # noqa: ARG002
    ) -> ModuleSpec | None:
        """Find a top-level module in one of the folders."""
        frame = sys._getframe(1)
        while frame.f_back is not None and "importlib" in frame.f_code.co_filename:
            frame = frame.f_back
        importer = str(frame.f_globals.get("__name__"))
        if path is not None or self._importers.isdisjoint({importer, importer.partition(".")[0]}):
            return None
        if (spec := PathFinder.find_spec(fullname, self.folders)) is not None:
            self._importers.add(fullname)
        return spec


_FINDER = _ComponentFinder()


def find_components(config: str) -> None:
    """Let a configuration name classes from modules in its folder or in the working directory."""
    for folder in (Path(config).absolute().parent, Path.cwd()):
        if str(folder) not in _FINDER.folders:
            _FINDER.folders.append(str(folder))
    if _FINDER not in sys.meta_path:
        sys.meta_path.append(_FINDER)


def write_line(text: object) -> None:
    """Write a line of output to stdout; names from files cannot control the terminal."""
    sys.stdout.write(f"{printable(str(text))}\n")


def json_text(value: Any, indent: int | None = 2) -> str:
    """Return a value as JSON, in ASCII if other characters are unprintable."""
    text = json.dumps(value, ensure_ascii=False, indent=indent)
    return text if text == printable(text) else json.dumps(value, indent=indent)


def pairs_of(words: Sequence[str], name: str, form: str) -> list[tuple[str, str]]:
    """Split words such as `TASK=FILE` at the equals sign.

    Raises:
        PalmError: a word has another form.
    """
    pairs = [word.partition("=") for word in words]
    if wrong := ["".join(pair) for pair in pairs if not all(pair)]:
        raise PalmError(f"{name} should be {form}, not {wrong[0]!r}")
    return [(left, right) for left, _, right in pairs]
