"""Commands of `palm` as values: a name, help, options, and the function that runs it.

A function imports what it needs when it runs: `palm --help` and the commands that need no torch must not
wait for torch.
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

Run = Callable[[argparse.Namespace], None]

Option = Callable[[argparse.ArgumentParser], object]
"""Adds an argument to a parser."""


def option(*names: str, **keywords: Any) -> Option:
    """Declare an argument, as `ArgumentParser.add_argument` takes it."""
    return methodcaller("add_argument", *names, **keywords)


def flag(name: str, meaning: str) -> Option:
    """Declare an option without a value."""
    return option(name, action="store_true", help=meaning)


def repeated(name: str, metavar: str, meaning: str) -> Option:
    """Declare an option whose values are collected."""
    return option(name, metavar=metavar, action="append", default=[], help=meaning)


def path(text: str) -> Path:
    """Parse the path of an option; `Path` takes the empty text for the working directory."""
    if not text:
        raise argparse.ArgumentTypeError("the path is empty")
    return Path(text)


def output(what: str, **keywords: Any) -> Option:
    """Declare the place of what a command writes: the same option in all of them."""
    return option("--output", metavar="OUT", type=path, help=f"where to write {what}", **keywords)


@dataclass(frozen=True)
class Command:
    """A command of `palm`.

    Args:
        name: the word after `palm`.
        help: its line in `palm --help`.
        run: gets the arguments, and in `settings` what only the configuration can understand; its docstring
            is the description.
        options: its arguments.
        epilog: returns the end of its `--help`.
        takes_settings: whether settings of a configuration may follow.
        only_reads: whether it reads declarations and records, for which torch is not needed.
    """

    name: str
    help: str
    run: Run
    options: Sequence[Option]
    epilog: Callable[[], str] | None = None
    takes_settings: bool = False
    only_reads: bool = False

    def show_help(self) -> None:
        """Write its help to stdout."""
        self.parser("" if self.epilog is None else self.epilog()).print_help()

    def parser(self, epilog: str = "") -> argparse.ArgumentParser:
        """Return the parser of its arguments."""
        # Without allow_abbrev=False, a setting whose name begins an option's would be taken for the option.
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
"""Word after `palm` -> command, in the order of `palm --help`."""


def command(
    name: str, help: str, options: Sequence[Option], **more: bool | Callable[[], str]
) -> Callable[[Run], Run]:
    """Return a decorator that makes a function a command; arguments as in `Command`."""

    def enter(run: Run) -> Run:
        COMMANDS[name] = Command(name, help, run, options, **more)  # type: ignore[arg-type]
        return run

    return enter


# ---- Options of several commands ----

TASK_DIR = option("--task_dir", default=".", help="the folder of the task files, beside CONFIG")
CONFIG = (option("config", help="the global YAML file"), TASK_DIR)
OPTIONAL_CONFIG = (option("config", nargs="?", help="the global YAML file"), TASK_DIR)

JSON = flag("--json", "as JSON")
OVERWRITE = flag("--overwrite", "replace OUT, if palm wrote it and no file of others is there")
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
        help="with --model: what computes; onnx is onnxruntime on the CPU (extra onnx)",
    ),
    option("--precision", help="auto, fp32, or bf16; with --engine onnx auto, fp32 or int8 (default: auto)"),
    TRUST,
)

GRID = (
    option("--workers", type=int, metavar="N", help="runs at a time; one a GPU where absent"),
    output("the runs: a folder"),
    flag("--keep_models", "keep the models of runs that are done"),
    flag("--overwrite", "remove the runs of other settings there"),
    # With these the command is one of its own runs.
    flag("--one_run", argparse.SUPPRESS),
    option("--of", help=argparse.SUPPRESS),
)
"""Options of commands that train a folder of runs."""


# ---- What commands have in common ----


class _ComponentFinder(MetaPathFinder):
    """Modules of the user, for what names them in a configuration and for each other, after all else.

    Libraries import optional packages by name (triton, dill): a file of that name there is none.
    """

    def __init__(self) -> None:
        self.folders: list[str] = []

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
        is_asked = frame.f_globals.get("__name__") in ("palm.core.registry", "palm.starter.catalogue")
        if path is None and (is_asked or frame.f_code.co_filename.startswith(tuple(self.folders))):
            return PathFinder.find_spec(fullname, self.folders)
        return None


_FINDER = _ComponentFinder()


def find_components(config: str) -> None:
    """Let a configuration name classes of modules beside it or in the working directory."""
    for folder in (Path(config).absolute().parent, Path.cwd()):
        if str(folder) not in _FINDER.folders:
            _FINDER.folders.append(str(folder))
    if _FINDER not in sys.meta_path:
        sys.meta_path.append(_FINDER)


def write_line(text: object) -> None:
    """Write an answer to stdout."""
    sys.stdout.write(f"{text}\n")


def json_text(value: Any) -> str:
    """Return an answer as indented JSON."""
    return json.dumps(value, ensure_ascii=False, indent=2)


def pairs_of(words: Sequence[str], name: str, form: str) -> list[tuple[str, str]]:
    """Return the two sides of words such as `TASK=FILE`.

    Raises:
        PalmError: a word of another form.
    """
    pairs = [word.partition("=") for word in words]
    if wrong := ["".join(pair) for pair in pairs if not all(pair)]:
        raise PalmError(f"{name} takes {form}, not {wrong[0]!r}")
    return [(left, right) for left, _, right in pairs]
