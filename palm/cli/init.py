"""`palm init`: the folder of a new project, which trains as it stands."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from palm.cli.command import Command, Settings
from palm.core.errors import ConfigError

DEFAULT = "cls, seq_label, mlm"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.usage = "palm init DIR [--tasks KIND|NAME=KIND,...] [--pretrain DIR|owner/name]"
    parser.description = (
        "Write a configuration, a file for each task, a few rows of data and a script into a new folder; "
        "`palm train config.yaml` trains them within two minutes on a CPU, without network. Kinds of tasks: "
        "cls, seq_label, mrc, match, mlm. On a terminal, what is missing is asked for."
    )
    parser.add_argument("folder", metavar="DIR", type=Path, help="the new folder")
    parser.add_argument("--tasks", metavar="KIND,...", help="such as cls,mlm or intent=cls,slots=seq_label")
    parser.add_argument(
        "--pretrain",
        metavar="WEIGHTS",
        help="the directory, or model at Hugging Face, to start from; a small random encoder where absent",
    )


def run(options: argparse.Namespace, settings: Settings) -> None:  # noqa: ARG001
    from palm.starter.project import KINDS, tasks_of, write_project

    tasks, pretrain = options.tasks, options.pretrain
    if tasks is None:
        if not sys.stdin.isatty():
            raise ConfigError([f"--tasks: say which tasks, such as --tasks {DEFAULT.replace(' ', '')}"])
        width = max(map(len, KINDS))
        sys.stdout.write("".join(f"  {kind:{width}}  {what}\n" for kind, what in KINDS.items()))
        tasks = input(f"Tasks, NAME=KIND or KIND alone [{DEFAULT}]: ").strip() or DEFAULT
        if pretrain is None:
            told = "Start from, a directory or a model at Hugging Face [a small random encoder]: "
            pretrain = input(told).strip() or None

    for file in write_project(options.folder, tasks_of(tasks), pretrain):
        sys.stdout.write(f"{options.folder / file}\n")
    sys.stdout.write(f"\nNext: cd {options.folder} && palm check config.yaml && palm train config.yaml\n")


COMMAND = Command("init", "write a new project that trains as it stands", add_arguments, run)
