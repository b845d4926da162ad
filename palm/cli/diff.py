"""`palm diff`: what differs between two runs."""

from __future__ import annotations

import argparse
import dataclasses
import json
import sys

from palm.cli.command import Command, Settings
from palm.core.files.untrusted import printable


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.description = (
        "Tell what differs between two runs: settings, with the file and line that set them, data, versions, "
        "steps and scores; save_path, in which any two runs differ, is left out. The exit code is 0 where "
        "nothing differs, 1 where something does, and 2 where there is no run."
    )
    parser.add_argument("first", metavar="RUN", help="the folder of a run, its save_path")
    parser.add_argument("second", metavar="RUN", help="that of another")
    parser.add_argument("--json", action="store_true", help="as JSON")


def run(options: argparse.Namespace, settings: Settings) -> None:  # noqa: ARG001
    from palm.report.difference import as_text, differences

    found = differences(options.first, options.second)
    if options.json:
        text = json.dumps([dataclasses.asdict(each) for each in found], ensure_ascii=False, indent=2)
    else:
        text = printable(as_text(found, options.first, options.second))
    sys.stdout.write(f"{text}\n")
    if found:
        raise SystemExit(1)


COMMAND = Command("diff", "tell what differs between two runs", add_arguments, run)
