"""Commands for writing configurations: init, ls."""

from __future__ import annotations

import argparse

from palm.cli import command as cli
from palm.core.errors import ConfigError


@cli.command(
    "init",
    "write a new project that is ready to train",
    [
        cli.option("folder", metavar="DIR", type=cli.path, help="the new folder"),
        cli.option(
            "--tasks",
            metavar="KIND,...",
            help="such as cls,mlm or intent=cls,slots=seq_label; with --from, COLUMN=KIND",
        ),
        cli.option(
            "--from", dest="table", metavar="FILE", type=cli.path, help="a table to create tasks from"
        ),
        cli.option(
            "--pretrain",
            metavar="WEIGHTS",
            help="a directory or a model at Hugging Face to start from (default: a small random encoder)",
        ),
        cli.option(
            "--effort",
            choices=["quick", "normal", "best"],
            help="how much to train (default: normal with --pretrain, fixed settings without)",
        ),
    ],
    uses_torch=False,
)
def init(options: argparse.Namespace) -> None:
    """Write a configuration, a file for each task, a few rows of data and a script into a new folder; `palm
    train config.yaml` trains them within two minutes on a CPU, without network. Kinds of tasks are cls,
    seq_label, mrc and others, which palm lists if --tasks is missing.
    """
    from palm.cli.starter.project import KINDS, tasks_of, write_project

    table = None
    tasks = tasks_of(options.tasks or "")
    if options.table is not None:
        from palm.cli.starter.table_tasks import tasks_in

        table = tasks_in(options.table, tasks)
        tasks = table.kinds
    if not tasks:
        kinds = "".join(f"\n  {kind:15}  {meaning}" for kind, meaning in KINDS.items())
        raise ConfigError(f"--tasks: missing; name the tasks, for example --tasks cls,seq_label,mlm{kinds}")
    if options.pretrain is not None:
        from palm.pretrained.loading import settings_of_model

        settings_of_model(options.pretrain)  # downloads it, or says what is wrong before a file is written
    for file in write_project(options.folder, tasks, options.pretrain, table, options.effort):
        cli.write_line(options.folder / file)
    cli.write_line(f"\nNext: cd {options.folder} && palm check config.yaml && palm train config.yaml")


@cli.command(
    "ls",
    "list components and their settings",
    [
        cli.option("name", nargs="?", help="a kind, or a component"),
    ],
)
def ls(options: argparse.Namespace) -> None:
    """List readers, heads, backbones, metrics, mixing strategies, optimizers, schedules and balancing
    methods, one per line; only one kind of them (palm ls mixing); or one with its settings (palm ls
    temperature).
    """
    from palm.cli.starter.catalogue import chosen, description, entries, listing
    from palm.controller.resolve import REGISTRIES

    if options.name in (None, *REGISTRIES):
        cli.write_line(listing(entries() if options.name is None else chosen(options.name)))
    else:
        cli.write_line("\n\n".join(map(description, chosen(options.name))))
