"""What the accuracy benchmarks share, so that they are called and train alike."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any


def read_arguments(description: str | None) -> argparse.Namespace:
    """Model, data and hyperparameters."""
    parser = argparse.ArgumentParser(
        description=description, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--model", type=Path, required=True, help="a Hugging Face BERT directory")
    parser.add_argument("--train", type=Path, required=True)
    parser.add_argument("--dev", type=Path, required=True)
    parser.add_argument("--test", type=Path)
    parser.add_argument("--epochs", type=int, default=3)
    parser.add_argument("--batch_size", type=int, default=32)
    parser.add_argument("--learning_rate", type=float, default=5e-5)
    parser.add_argument("--weight_decay", type=float, default=0.01)
    parser.add_argument("--max_seq_len", type=int, default=128)
    parser.add_argument("--precision", default="fp32", choices=("fp32", "bf16"))
    parser.add_argument("--seeds", type=int, nargs="+", default=[1, 2, 3])
    return parser.parse_args()


def run_settings(args: argparse.Namespace) -> dict[str, Any]:
    """Settings of a run of palm on `args.model`, without its tasks."""
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
