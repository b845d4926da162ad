"""`palm download`: published pretrained models, listed or fetched by name."""

from __future__ import annotations

import argparse
import sys

from palm.cli.command import Command, Settings

ITEM = "pretrain"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.usage = "palm download --list\n       palm download NAME [NAME ...] [--path DIR] [--no-convert]"
    parser.description = (
        "Download pretrained models to DIR/pretrain/NAME. What has arrived is kept when a connection "
        "breaks off: run the same again, and it goes on from there. The environment variables PALM_MIRROR "
        "(PaddlePALM's archives) and HF_ENDPOINT (Hugging Face) name other servers."
    )
    parser.add_argument("-l", "--list", action="store_true", help="list the models")
    parser.add_argument(
        "names", metavar="NAME", nargs="*", help="a model, owner/name, or all of the list (all)"
    )
    parser.add_argument("-d", "--download", metavar="NAME", action="append", default=[], help="the same")
    parser.add_argument("--path", metavar="DIR", default=".", help="the folder that is to hold `pretrain`")
    parser.add_argument(
        "--no-convert",
        dest="convert",
        action="store_false",
        help="keep PaddlePALM's weights as they are, without model.safetensors beside them",
    )


def run(options: argparse.Namespace, settings: Settings) -> None:  # noqa: ARG001
    from palm import downloader
    from palm.downloader.items import listed

    names = [*options.names, *options.download]
    if options.list or not names:
        sys.stdout.writelines(f"{line}\n" for line in listed(ITEM))
    try:
        for name in names:
            downloader.download(ITEM, name, options.path, convert=options.convert)
    except KeyboardInterrupt:
        raise KeyboardInterrupt("run the same again, and it goes on from there") from None


COMMAND = Command("download", "list pretrained models, or download them by name", add_arguments, run)
