"""The command `palm`: train and predict from a shell."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

from palm import assembly
from palm.config import help_text
from palm.controller import Controller
from palm.errors import PalmError
from palm.inference import load_model
from palm.logging import show_on_console
from palm.version import __version__


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line; returns the exit code: 0, or 2 with one message for what a user can mend."""
    show_on_console()
    parser = _parser()
    options, settings = parser.parse_known_args(arguments)
    try:
        options.run(options, settings)
    except PalmError as error:
        sys.stdout.flush()
        sys.stderr.write(f"error: {error}\n")
        return 2
    except KeyboardInterrupt:
        sys.stderr.write("interrupted\n")
        return 130
    return 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="palm", description="Multi-task training on one shared BERT or ERNIE encoder."
    )
    parser.add_argument("--version", action="version", version=f"palm {__version__}")
    commands = parser.add_subparsers(metavar="command", required=True)
    train = commands.add_parser(
        "train",
        help="train the tasks of a configuration",
        usage="palm train CONFIG [--task_dir DIR] [--SETTING VALUE ...]",
        epilog=help_text(assembly.HELP, assembly.TASK_PARTS),
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    _add_config(train, required=True)
    train.set_defaults(run=_train)
    predict = commands.add_parser(
        "predict",
        help="predict with trained tasks",
        usage="palm predict CONFIG [--task NAME ...] [--inference_model_dir DIR] [--SETTING VALUE ...]\n"
        "       palm predict --model DIR --input FILE --output DIR",
        description="Predict the pred_file of tasks of a configuration (all of them where none is named), "
        "or a file with a saved model, without any configuration.",
    )
    _add_config(predict, required=False)
    predict.add_argument("--task", action="append", default=[], help="a task to predict; may be repeated")
    predict.add_argument("--inference_model_dir", help="the saved model, for one task")
    predict.add_argument("--model", type=Path, help="the saved model")
    predict.add_argument("--input", type=Path, help="the data file to predict")
    predict.add_argument("--output", type=Path, help="the folder for the predictions")
    predict.set_defaults(run=_predict)
    return parser


def _add_config(parser: argparse.ArgumentParser, required: bool) -> None:
    parser.add_argument("config", nargs=None if required else "?", help="the global YAML file")
    parser.add_argument("--task_dir", default=".", help="the folder of the task files, beside CONFIG")


def _train(options: argparse.Namespace, settings: list[str]) -> None:
    Controller(options.config, options.task_dir, argv=settings).train()


def _predict(options: argparse.Namespace, settings: list[str]) -> None:
    if options.config is None:
        _predict_file(options, settings)
        return
    controller = Controller(options.config, options.task_dir, for_train=False, argv=settings)
    for task in options.task or controller.config.tasks:
        controller.pred(task, options.inference_model_dir)


def _predict_file(options: argparse.Namespace, settings: list[str]) -> None:
    missing = [name for name in ("model", "input", "output") if getattr(options, name) is None]
    if missing or settings:
        wrong = f"unknown: {' '.join(settings)}" if settings else f"missing: --{', --'.join(missing)}"
        raise PalmError(f"palm predict needs CONFIG, or --model, --input and --output; {wrong}")
    load_model(options.model).predict_file(options.input, options.output)
