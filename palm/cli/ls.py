"""`palm ls`: what a configuration can name."""

from __future__ import annotations

import argparse
import json
import sys

from palm.cli.command import Command, Settings, find_components


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.usage = "palm ls [KIND | NAME | KIND.NAME] [--config CONFIG] [--module MODULE] [--json]"
    parser.description = (
        "List readers, heads, backbones, metrics, mixing strategies, optimizers, schedules and demos, a line "
        "each; all of one kind (palm ls mixing); or one of them with its settings "
        "(palm ls mixing.temperature)."
    )
    parser.add_argument("name", nargs="?", help="a kind, or a component")
    parser.add_argument("--config", help="also those of the modules that this configuration names")
    parser.add_argument("--task_dir", default=".", help="the folder of the task files, beside CONFIG")
    parser.add_argument(
        "--module", action="append", default=[], help="also those of this module; may be repeated"
    )
    parser.add_argument("--json", action="store_true", help="as JSON")


def run(options: argparse.Namespace, settings: Settings) -> None:  # noqa: ARG001
    from palm.catalogue.entries import KINDS, chosen, entries
    from palm.catalogue.text import as_json, description, listing

    modules = list(options.module)
    find_components(options.config or ".")
    if options.config is not None:
        from palm.config import read_config

        config = read_config(options.config, options.task_dir, argv=(), resolves_auto=False)
        named = [config.value(kind, scope) for kind in KINDS for scope in (None, *config.tasks)]
        values = [each.value for each in named if each is not None]
        paths = [path for value in values for path in (value if isinstance(value, list) else [value])]
        modules += [str(path).rpartition(".")[0] for path in paths if "." in str(path)]
    modules = list(dict.fromkeys(modules))
    found = entries(modules=modules) if options.name is None else chosen(options.name, modules)
    if options.json:
        text = json.dumps(as_json(found), ensure_ascii=False, indent=2)
    elif options.name in (None, *KINDS, "demos"):
        text = listing(found)
    else:
        text = "\n\n".join(map(description, found))
    sys.stdout.write(f"{text}\n")


COMMAND = Command("ls", "list what a configuration can name, and its settings", add_arguments, run)
