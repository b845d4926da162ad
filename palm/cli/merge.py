"""`palm merge`: several models of one task as one."""

from __future__ import annotations

import argparse

from palm.cli.command import Command, Settings, add_overwrite, add_trust
from palm.core.errors import PalmError


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.usage = "palm merge MODEL [MODEL ...] --output OUT [--weights 0.5,0.5] [--task TASK] [--overwrite]"
    parser.description = (
        "Save the mean of models of one task: of the last checkpoints of a run, or of runs with other seeds. "
        "They must be built alike; what differs is told."
    )
    parser.add_argument("models", metavar="MODEL", nargs="+", help="a saved model, or a checkpoint of a run")
    parser.add_argument("--output", metavar="OUT", required=True, help="the new folder")
    parser.add_argument("--weights", help="the share of each model, separated by commas; equal where absent")
    parser.add_argument("--task", help="whose model to take from checkpoints that have several")
    add_overwrite(parser)
    add_trust(parser)


def run(options: argparse.Namespace, settings: Settings) -> None:  # noqa: ARG001
    from palm.export.merge import merge

    weights = None
    if options.weights is not None:
        try:
            weights = [float(part) for part in options.weights.split(",")]
        except ValueError:
            raise PalmError(f"--weights should be numbers such as 0.5,0.5, not {options.weights!r}") from None
    merge(
        options.models,
        options.output,
        weights,
        task=options.task,
        trust=options.trust,
        overwrite=options.overwrite,
    )


COMMAND = Command("merge", "the mean of several models of one task", add_arguments, run)
