"""Commands for writing configurations: init, ls, completion."""

from __future__ import annotations

import argparse

from palm.cli import command as cli
from palm.core.errors import ConfigError, PalmError


@cli.command(
    "init",
    "write a new project that is ready to train",
    [
        cli.option("folder", metavar="DIR", type=cli.path, help="the new folder"),
        cli.option("--tasks", metavar="KIND,...", help="such as cls,mlm or intent=cls,slots=seq_label"),
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
)
def init(options: argparse.Namespace) -> None:
    """Write a configuration, a file for each task, a few rows of data and a script into a new folder; `palm
    train config.yaml` trains them within two minutes on a CPU, without network. Kinds of tasks are cls,
    seq_label, mrc and others, which palm lists if --tasks is missing.
    """
    from palm.cli.starter.project import KINDS, tasks_of, write_project

    tasks = options.tasks
    if options.table is not None and tasks is not None:
        raise ConfigError("--from finds the tasks in the table; leave --tasks out")
    table = None
    if options.table is not None:
        from palm.cli.starter.table_tasks import tasks_in

        table = tasks_in(options.table)
        tasks = ",".join(f"{name}={kind}" for name, kind in table.kinds.items())
    if tasks is None:
        kinds = "".join(f"\n  {kind:15}  {meaning}" for kind, meaning in KINDS.items())
        raise ConfigError(f"--tasks: missing; name the tasks, for example --tasks cls,seq_label,mlm{kinds}")
    for file in write_project(options.folder, tasks_of(tasks), options.pretrain, table, options.effort):
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


@cli.command(
    "completion",
    "print a script that completes words in a shell",
    [cli.option("shell", choices=["bash", "zsh", "fish"], help="the shell")],
)
def completion(options: argparse.Namespace) -> None:
    """Print a script that completes commands, options, settings and component names (extra completion).
    For bash: palm completion bash > ~/.local/share/bash-completion/completions/palm. For zsh: palm
    completion zsh > ~/.zfunc/_palm, a folder of $fpath. For fish: palm completion fish >
    ~/.config/fish/completions/palm.fish.
    """
    try:
        import shtab
    except ImportError:
        raise PalmError("palm completion needs shtab: pip install 'palm-torch[completion]'") from None
    from palm.cli.starter.catalogue import entries

    names = list(dict.fromkeys(name for entry in entries() for name in (entry.kind, entry.path)))
    parser = argparse.ArgumentParser(prog="palm")
    commands = parser.add_subparsers()
    for each in cli.COMMANDS.values():
        words = commands.add_parser(each.name, help=each.help)
        each.add_options(words)
        if each.takes_settings:
            _add_settings(words)
        for action in words._actions:
            if each.name == "ls" and action.dest == "name":
                action.choices = names
            elif action.nargs != 0 and action.choices is None:
                vars(action)["complete"] = shtab.FILE
    cli.write_line(shtab.complete(parser, options.shell))


def _add_settings(words: argparse.ArgumentParser) -> None:
    """Add the settings of a configuration to the options of a command."""
    from palm.config.run import listed
    from palm.controller.resolve import HELP, NO_SETTINGS

    taken = {action.dest for action in words._actions}
    for setting in listed([consumer for group in HELP.values() for consumer in group], NO_SETTINGS):
        if setting.name not in taken:
            words.add_argument(f"--{setting.name}", help=setting.doc.replace("%", "%%"))
