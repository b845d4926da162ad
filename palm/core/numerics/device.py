"""The device of a model: a GPU if one is available and wanted."""

from __future__ import annotations

import functools
from typing import Literal

import torch

from palm.core.errors import ConfigError
from palm.core.logging import logger

DeviceName = Literal["auto", "cpu", "cuda"]

_log_once = functools.cache(logger.info)


def device_of(use_gpu: bool, name: DeviceName = "auto") -> torch.device:
    """Return the device for the settings `use_gpu` and `device`; log a fallback to the CPU once.

    Raises:
        ConfigError: `device` is cuda, and no GPU is visible.
    """
    wanted = name == "cuda" or (name == "auto" and use_gpu)
    if wanted and torch.cuda.is_available():
        return torch.device("cuda")
    if name == "cuda":
        raise ConfigError("device: no GPU is visible; check CUDA_VISIBLE_DEVICES, or use auto or cpu")
    if wanted:
        _log_once("no GPU is visible: running on the CPU")
    return torch.device("cpu")
