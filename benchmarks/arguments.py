"""Options and settings that benchmarks have in common."""

from __future__ import annotations

import argparse
import multiprocessing
import sys
from pathlib import Path
from typing import Any

OWN_PROCESS: Any = multiprocessing.get_context("fork" if sys.platform.startswith("linux") else "spawn")
"""Start of processes that take one measurement each; the program that starts them does little besides."""


def new_parser(description: str | None) -> argparse.ArgumentParser:
    """Return a parser whose help is the program's docstring as it stands."""
    return argparse.ArgumentParser(
        description=description, formatter_class=argparse.RawDescriptionHelpFormatter
    )


def add_training(
    parser: argparse.ArgumentParser,
    epochs: float = 3,
    batch_size: int = 32,
    learning_rate: float = 5e-5,
    max_seq_len: int = 128,
    precision: str = "auto",
) -> None:
    """Add the encoder and the hyperparameters of a training, with these defaults."""
    parser.add_argument("--model", type=Path, required=True, help="a Hugging Face BERT directory")
    parser.add_argument("--epochs", type=type(epochs), default=epochs)
    parser.add_argument("--batch_size", type=int, default=batch_size)
    parser.add_argument("--learning_rate", type=float, default=learning_rate)
    parser.add_argument("--weight_decay", type=float, default=0.01)
    parser.add_argument("--max_seq_len", type=int, default=max_seq_len)
    parser.add_argument("--precision", default=precision, choices=("auto", "fp32", "bf16"))


def read_arguments(description: str | None) -> argparse.Namespace:
    """Return model, data, hyperparameters and seeds of a training on one task."""
    parser = new_parser(description)
    add_training(parser, precision="fp32")
    parser.add_argument("--train", type=Path, required=True)
    parser.add_argument("--dev", type=Path, required=True)
    parser.add_argument("--test", type=Path)
    parser.add_argument("--seeds", type=int, nargs="+", default=[1, 2, 3])
    return parser.parse_args()


def run_settings(args: argparse.Namespace) -> dict[str, Any]:
    """Return the settings of a run of palm on `args.model`, without its tasks."""
    return {
        "backbone": "bert",
        "backbone_config_path": str(args.model / "config.json"),
        "vocab_path": str(args.model / "vocab.txt"),
        "pretrain_path": str(args.model),
        "do_lower_case": True,
        "max_seq_len": args.max_seq_len,
        "learning_rate": args.learning_rate,
        "weight_decay": args.weight_decay,
        "warmup_proportion": 0.1,
        "batch_size": args.batch_size,
        "num_epochs": args.epochs,
        "precision": args.precision,
        "print_every_n_steps": 200,
    }
