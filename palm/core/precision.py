"""Which numbers a model computes with: float32, or bfloat16 where the hardware multiplies it faster.

Parameters, what heads read and give, and losses are float32 in either case. bfloat16 goes
through `torch.autocast`, which any backbone heeds that is made of torch's modules.
"""

from __future__ import annotations

from typing import Literal, get_args

import torch

from palm.core.errors import ConfigError

Setting = Literal["auto", "fp32", "bf16"]
"""What a user may ask for."""

Precision = Literal["fp32", "bf16"]
"""What is computed with."""


def checked(setting: str) -> str:
    """A setting that was given from Python.

    Raises:
        ConfigError: there is no such one.
    """
    if setting not in get_args(Setting):
        raise ConfigError([f"precision should be one of {', '.join(get_args(Setting))}, not {setting!r}"])
    return setting


def resolved(setting: str, device: torch.device) -> Precision:
    """What a setting means on a device: `auto` is bf16 on GPUs and CPUs that have it, otherwise fp32."""
    is_bf16 = has_fast_bf16(device) if setting == "auto" else setting == "bf16"
    return "bf16" if is_bf16 else "fp32"


def has_fast_bf16(device: torch.device) -> bool:
    """Whether matrix products are several times faster in bfloat16: NVIDIA from Ampere on, CPUs with AMX."""
    if device.type == "cuda":
        return bool(torch.cuda.is_bf16_supported(including_emulation=False))
    return device.type == "cpu" and bool(torch.cpu._is_amx_tile_supported())


def computing(precision: Precision, device: torch.device) -> torch.autocast:
    """The context to call modules in; within fp32, a surrounding `torch.autocast` has no effect."""
    return torch.autocast(device.type, torch.bfloat16, enabled=precision == "bf16")


def compute_dtype(tensor: torch.Tensor) -> torch.dtype:
    """The dtype to compute with from `tensor` on: within `torch.autocast` the one it asks for."""
    device = tensor.device.type
    return torch.get_autocast_dtype(device) if torch.is_autocast_enabled(device) else tensor.dtype
