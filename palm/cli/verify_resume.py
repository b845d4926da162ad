"""`palm verify-resume`: whether an interrupted run of a configuration ends like an uninterrupted one."""

from __future__ import annotations

import argparse
import sys
from contextlib import suppress
from pathlib import Path

from palm.cli.command import Command, Settings, add_config


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.usage = "palm verify-resume CONFIG [--task_dir DIR] [--steps N] [--more M] [--SETTING VALUE ...]"
    parser.description = (
        "Train N + M steps; then N steps, kill the process, train M more from its checkpoint, and compare "
        "batches, losses and weights bit by bit. Everything is written to a temporary folder. The exit code "
        "is 0 where nothing differs, and 1 with what differed first."
    )
    add_config(parser, required=True)
    parser.add_argument("--steps", type=int, default=20, metavar="N", help="steps before the kill")
    parser.add_argument("--more", type=int, default=20, metavar="M", help="steps after it")
    # With these the command is one of its own runs.
    parser.add_argument("--record", type=Path, help=argparse.SUPPRESS)
    parser.add_argument("--killed", action="store_true", help=argparse.SUPPRESS)


def run(options: argparse.Namespace, settings: Settings) -> None:
    from palm.core.checks import count_problems, raise_any

    raise_any(count_problems(steps=options.steps, more=options.more))
    if options.record is not None:
        from palm.controller import Controller
        from palm.engine.run.determinism import EnoughSteps, Recorder

        last, killed_after = options.steps + options.more, options.steps if options.killed else None
        with suppress(EnoughSteps):
            Controller(options.config, options.task_dir, argv=settings).train(
                [Recorder(options.record, last, killed_after)]
            )
        return
    from palm.controller.resume_check import check_resume

    words = [options.config, "--task_dir", options.task_dir, *settings]
    check = check_resume(words, options.steps, options.more)
    sys.stdout.write(f"{check}\n")
    if check.difference is not None:
        raise SystemExit(1)


COMMAND = Command(
    "verify-resume", "try out whether a killed run continues exactly", add_arguments, run, takes_settings=True
)
