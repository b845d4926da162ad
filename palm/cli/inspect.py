"""`palm inspect`: what a directory holds."""

from __future__ import annotations

import argparse
import json
import sys

from palm.cli.command import Command, Settings
from palm.core.files.untrusted import printable


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.description = (
        "Tell what a directory holds: a saved model, a checkpoint, a run, an export, or pretrained weights "
        "of Hugging Face, Google, PaddlePALM or PaddleNLP. Of weights, only names and shapes are read where "
        "the format allows it."
    )
    parser.add_argument("directory", metavar="DIR", help="the directory")
    parser.add_argument("--json", action="store_true", help="as JSON")


def run(options: argparse.Namespace, settings: Settings) -> None:  # noqa: ARG001
    from palm.export.inspection import as_text, inspect_directory

    facts = inspect_directory(options.directory)
    text = json.dumps(facts, ensure_ascii=False, indent=2) if options.json else as_text(facts)
    shown = printable(text)
    if options.json and shown != text:
        shown = json.dumps(facts, indent=2)  # whose own escapes are JSON still
    sys.stdout.write(shown + "\n")


COMMAND = Command("inspect", "tell what a directory holds", add_arguments, run)
