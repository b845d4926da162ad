"""The precision of computation: float32, or bfloat16 where the hardware is faster with it.

Parameters, the inputs and outputs of heads, and losses are float32 in either case. bfloat16 uses
`torch.autocast`, which works for every backbone made of torch's modules.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any, Literal, NamedTuple, get_args

import torch

from palm.core.component import choice_problems, raise_any

Setting = Literal["auto", "fp32", "bf16"]
"""Values of the setting `precision`."""

Precision = Literal["fp32", "bf16"]
"""Precisions in which palm computes."""


def checked(setting: str) -> str:
    """Return a setting that was given in Python, after checking it.

    Raises:
        ConfigError: it is not a `Setting`.
    """
    raise_any(choice_problems(get_args(Setting), precision=setting))
    return setting


def resolved(setting: str, device: torch.device) -> Precision:
    """Return the precision for a setting on a device; see `choice`."""
    return choice(setting, device).precision


class Choice(NamedTuple):
    """A precision, and the reason for it."""

    precision: Precision
    reason: str


def choice(setting: str, device: torch.device) -> Choice:
    """Choose the precision for a setting: `auto` is bf16 on devices that were measured to be faster with it.

    Args:
        setting: auto, fp32 or bf16.
        device: the device that computes.
    """
    if setting != "auto":
        return Choice("bf16" if setting == "bf16" else "fp32", "as configured")
    if device.type == "cuda":
        supported = bool(torch.cuda.is_bf16_supported(including_emulation=False))
        if supported:
            return Choice("bf16", "the GPU supports it")
        return Choice("fp32", "the GPU does not support bfloat16")
    if device.type != "cpu":
        return Choice("fp32", f"the speed of bfloat16 on {device.type} is unknown")
    known = torch.cpu.get_capabilities() if hasattr(torch.cpu, "get_capabilities") else {}
    return choice_of_cpu({**known, "amx_bf16": torch.cpu._is_amx_tile_supported()})


def choice_of_cpu(capabilities: Mapping[str, Any]) -> Choice:
    """Choose the precision for `auto` on a CPU.

    Training MiniLM in bfloat16 takes 0.44 to 0.65 of the time of float32 with AMX, and 0.5 to 0.6 with
    AVX512_BF16 on AMD (Zen 4; 0.35 on Zen 5). A product takes 1.7 times as long with AVX512_BF16 on Intel
    (Sapphire Rapids, AMX disabled), and 5 times as long without either.

    Args:
        capabilities: as in `torch.cpu.get_capabilities`.
    """
    if capabilities.get("amx_bf16"):
        return Choice("bf16", "the CPU has amx_bf16")
    if not capabilities.get("avx512_bf16"):
        return Choice("fp32", "the CPU has neither amx_bf16 nor avx512_bf16")
    if "Intel" in capabilities.get("cpu_name", ""):
        return Choice("fp32", "the CPU has avx512_bf16, but it is Intel's, which is slower in bfloat16")
    return Choice("bf16", "the CPU has avx512_bf16")


def computing(precision: Precision, device: torch.device) -> torch.autocast:
    """Return the context to call modules in; fp32 disables a surrounding `torch.autocast`."""
    return torch.autocast(device.type, torch.bfloat16, enabled=precision == "bf16")


def compute_dtype(tensor: torch.Tensor) -> torch.dtype:
    """Return the dtype of computations on `tensor`: that of `torch.autocast` if it is enabled."""
    device = tensor.device.type
    return torch.get_autocast_dtype(device) if torch.is_autocast_enabled(device) else tensor.dtype


@contextmanager
def tf32(allowed: bool | None) -> Iterator[None]:
    """Allow or forbid TensorFloat-32 in float32 matrix products (NVIDIA GPUs from Ampere on).

    Args:
        allowed: None keeps torch's current setting.
    """
    if allowed is None:
        yield
        return
    matmul: Any = torch.backends.cuda.matmul
    name = "allow_tf32"
    value: bool | str = allowed
    try:
        before = matmul.allow_tf32
    except RuntimeError:  # the older name fails once the newer one has been used
        name = "fp32_precision"
        value = "tf32" if allowed else "ieee"
        before = matmul.fp32_precision
    setattr(matmul, name, value)
    try:
        yield
    finally:
        setattr(matmul, name, before)
