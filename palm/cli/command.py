"""What makes one word a command of `palm`.

A command's module imports what it runs inside of its functions: `palm --help` and the commands that need no
torch must not wait for it.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from palm.core.errors import PalmError

Settings = Sequence[str]
"""`--SETTING VALUE ...`, which only the configuration can understand."""


@dataclass(frozen=True)
class Command:
    """One command.

    Args:
        name: the word after `palm`.
        help: its line in `palm --help`.
        add_arguments: adds its arguments to its parser, and what else its `--help` says.
        run: does it; gets the arguments, and the settings that follow them.
        takes_settings: whether settings of a configuration may follow.
    """

    name: str
    help: str
    add_arguments: Callable[[argparse.ArgumentParser], None]
    run: Callable[[argparse.Namespace, Settings], None]
    takes_settings: bool = False


def add_trust(parser: argparse.ArgumentParser) -> None:
    """The argument that allows code beside palm's own."""
    parser.add_argument(
        "--trust",
        metavar="MODULE",
        action="append",
        default=[],
        help="import components of the saved model from this module, package or class; may be repeated",
    )


def refuse_trust(options: argparse.Namespace) -> None:
    """With a configuration nothing needs to be allowed.

    Raises:
        PalmError: it was.
    """
    if options.trust:
        raise PalmError("--trust goes with --model; a configuration names its own components, and they count")


def add_engine(parser: argparse.ArgumentParser) -> None:
    """The arguments that say what computes a saved model, and with which numbers."""
    parser.add_argument(
        "--engine",
        choices=["torch", "onnx"],
        default="torch",
        help="with --model: what computes; onnx is onnxruntime on the CPU (extra onnx)",
    )
    parser.add_argument(
        "--precision", help="auto, fp32, or bf16; with --engine onnx auto, fp32 or int8 (default: auto)"
    )


def settings_with_precision(options: argparse.Namespace, settings: Settings) -> Settings:
    """The settings that a configuration gets, where `add_engine` has taken one of them.

    Raises:
        PalmError: another engine, which a configuration does not know.
    """
    if options.engine != "torch":
        raise PalmError("--engine goes with --model")
    return settings if options.precision is None else [*settings, "--precision", options.precision]


def refuse_incomplete(options: argparse.Namespace, settings: Settings, command: str, *names: str) -> None:
    """Without a configuration, some options are needed, and settings are not.

    Raises:
        PalmError: otherwise.
    """
    missing = [name for name in names if getattr(options, name) is None]
    if missing or settings:
        needed = f"--{', --'.join(names[:-1])} and --{names[-1]}"
        wrong = f"unknown: {' '.join(settings)}" if settings else f"missing: --{', --'.join(missing)}"
        raise PalmError(f"{command} needs CONFIG, or {needed}; {wrong}")


def find_components(config: str) -> None:
    """Let a configuration name classes of modules beside it or in the working directory.

    As for `python demo.py`, whose folder Python searches; behind all else, so that no module of a library is
    replaced by a file that happens to be called like it.
    """
    for folder in (Path(config).absolute().parent, Path.cwd()):
        if str(folder) not in sys.path:
            sys.path.append(str(folder))


def add_config(parser: argparse.ArgumentParser, required: bool) -> None:
    """The arguments that name a configuration."""
    parser.add_argument("config", nargs=None if required else "?", help="the global YAML file")
    parser.add_argument("--task_dir", default=".", help="the folder of the task files, beside CONFIG")


def add_overwrite(parser: argparse.ArgumentParser) -> None:
    """The argument that lets a command replace what palm wrote before, and nothing else."""
    parser.add_argument(
        "--overwrite",
        action="store_true",
        help="replace OUT, if palm wrote it and no file of others is there",
    )
