"""`palm check`: the run before the run."""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path

from palm.cli.command import Command, Settings, add_config, find_components


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.usage = (
        "palm check CONFIG [--task_dir DIR] [--json FILE] [--html FILE] [--strict] [--no_measure]\n"
        "                  [--SETTING VALUE ...]"
    )
    parser.description = (
        "Look at a run before it is made: its data, its wiring, its steps, time and memory, and where it "
        "would write. Nothing is trained, and nothing is written to save_path. The exit code is 0 where "
        "nothing stands against the run, 1 with an error (with --strict, also with a warning), and 2 where "
        "the command line is wrong."
    )
    add_config(parser, required=True)
    add_check_options(parser)


def add_check_options(parser: argparse.ArgumentParser) -> None:
    """What says how a check is told; of `palm check` and `palm train --dry_run`."""
    parser.add_argument(
        "--json", metavar="FILE", help="write it as JSON; - for standard output, without text"
    )
    parser.add_argument("--html", metavar="FILE", type=Path, help="write it as a page")
    parser.add_argument("--strict", action="store_true", help="let warnings, too, end with exit code 1")
    parser.add_argument("--no_measure", action="store_true", help="do not measure time and memory")


def run(options: argparse.Namespace, settings: Settings) -> None:
    from palm.check import check
    from palm.check.text import as_text
    from palm.core.files.manifest import write_text
    from palm.core.files.untrusted import printable

    find_components(options.config)
    found = check(options.config, options.task_dir, settings, measure=not options.no_measure)
    if options.json != "-":
        sys.stdout.write(f"{printable(as_text(found))}\n")
    if options.json is not None:
        text = json.dumps(found.as_json(), ensure_ascii=False, indent=2, allow_nan=False) + "\n"
        if options.json == "-":
            sys.stdout.write(text)
        else:
            write_text(Path(options.json), text)
    if options.html is not None:
        from palm.check.page import write_page

        write_page(found, options.html)
    if not found.is_fine(options.strict):
        raise SystemExit(1)


COMMAND = Command("check", "look at a run before it is made", add_arguments, run, takes_settings=True)
