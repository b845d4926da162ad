"""`palm convert`: a pretrained encoder in another program's layout."""

from __future__ import annotations

import argparse

from palm.cli.command import Command, Settings, add_overwrite


def add_arguments(parser: argparse.ArgumentParser) -> None:
    from palm.export.convert import WRITERS

    parser.description = (
        "Write the encoder of a directory (of Hugging Face, Google, PaddlePALM, PaddleNLP or palm) with its "
        "vocabulary for Hugging Face's transformers, or under palm's own names. The numbers stay the same."
    )
    parser.add_argument("source", metavar="DIR", help="a directory with weights, sizes and vocabulary")
    parser.add_argument("folder", metavar="OUT", help="the new folder")
    add_overwrite(parser)
    parser.add_argument("--to", choices=list(WRITERS), default="hf", help="the layout; hf where absent")


def run(options: argparse.Namespace, settings: Settings) -> None:  # noqa: ARG001
    from palm.export.convert import convert

    convert(options.source, options.folder, options.to, options.overwrite)


COMMAND = Command("convert", "write an encoder for transformers, or for palm", add_arguments, run)
