"""`palm export`: trained tasks for other programs."""

from __future__ import annotations

import argparse
from pathlib import Path

from palm.cli.command import Command, Settings, add_overwrite, add_trust
from palm.core.errors import PalmError


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.usage = (
        "palm export MODEL OUT --to hf [--overwrite]\n"
        "       palm export MODEL OUT --to onnx [--rows FILE]\n"
        "       palm export CHECKPOINT OUT --to onnx --all-heads [--rows TASK=FILE ...]"
    )
    parser.description = (
        "Write a saved model as a directory of Hugging Face's transformers, or as an ONNX graph; or all "
        "tasks of a checkpoint as one ONNX graph. A graph is compared with PyTorch on rows of data first."
    )
    parser.add_argument("source", metavar="MODEL", help="a saved model, or the checkpoint of a run")
    parser.add_argument("folder", metavar="OUT", help="the new folder")
    add_overwrite(parser)
    parser.add_argument("--to", choices=["hf", "onnx"], required=True, help="for transformers, or ONNX")
    parser.add_argument("--all-heads", action="store_true", help="all tasks of a run in one ONNX graph")
    parser.add_argument(
        "--rows",
        metavar="FILE",
        action="append",
        default=[],
        help="the data whose first rows are compared; what the run predicts or trains on where absent",
    )
    add_trust(parser)


def run(options: argparse.Namespace, settings: Settings) -> None:  # noqa: ARG001
    from palm.export import to_hugging_face, to_onnx

    if options.to == "onnx":
        rows = next(iter(options.rows), None)
        if options.all_heads:
            pairs = [word.partition("=") for word in options.rows]
            if unnamed := [task for task, equals, _ in pairs if not equals]:
                raise PalmError(f"--rows with --all-heads is TASK=FILE, not {unnamed[0]!r}")
            rows = {task: Path(file) for task, _, file in pairs}
        to_onnx(
            options.source,
            options.folder,
            all_heads=options.all_heads,
            rows=rows,
            trust=options.trust,
            overwrite=options.overwrite,
        )
        return
    if options.all_heads or options.rows:
        raise PalmError("--all-heads and --rows go with --to onnx")
    to_hugging_face(options.source, options.folder, trust=options.trust, overwrite=options.overwrite)


COMMAND = Command("export", "write trained tasks for transformers or ONNX", add_arguments, run)
