"""Where a model runs: a GPU if there is one and it is wanted."""

from __future__ import annotations

import functools

import torch

from palm.logging import logger


def device_of(use_gpu: bool) -> torch.device:
    """The device for `use_gpu`; says once that it falls back to the CPU."""
    if use_gpu and torch.cuda.is_available():
        return torch.device("cuda")
    if use_gpu:
        _say_fallback()
    return torch.device("cpu")


@functools.cache
def _say_fallback() -> None:
    logger.info("no GPU is visible: running on the CPU")
