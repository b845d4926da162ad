"""One small BERT whose every number is known, under the names of other programs."""

from __future__ import annotations

import struct
from pathlib import Path

import torch
from torch import Tensor

from helpers import tiny
from palm.backbone import BERT
from palm.pretrained.names import from_ours

SIZES = tiny.sizes(4, 1, 2, vocab_size=6, max_position_embeddings=5, intermediate_size=3)


def known() -> dict[str, Tensor]:
    """The weights: the n-th parameter counts up from n in steps of a sixty-fourth."""
    shapes = {name: value.shape for name, value in BERT(**SIZES).state_dict().items()}
    return {
        name: number + torch.arange(shape.numel(), dtype=torch.float).reshape(shape) / 64
        for number, (name, shape) in enumerate(sorted(shapes.items()))
    }


def paddlenlp() -> dict[str, Tensor]:
    """The same as parameters of a classifier of PaddleNLP, with its head."""
    weights = {f"bert.{name}": value.contiguous() for name, value in from_ours(known(), "paddlenlp").items()}
    return {**weights, "classifier.weight": torch.zeros(4, 2), "classifier.bias": torch.zeros(2)}


def write_variables(folder: Path, tensors: dict[str, Tensor]) -> Path:
    """One file of Paddle Fluid per tensor."""
    folder.mkdir(exist_ok=True, parents=True)
    for name, value in tensors.items():
        described = bytes([0x08, 5]) + b"".join(b"\x10" + _varint(size) for size in value.shape)
        header = struct.pack("<IQIi", 0, 0, 0, len(described))
        (folder / name).write_bytes(header + described + value.contiguous().numpy().tobytes())
    return folder


def _varint(number: int) -> bytes:
    low = number & 0x7F
    return bytes([low | 0x80]) + _varint(number >> 7) if number >> 7 else bytes([low])
