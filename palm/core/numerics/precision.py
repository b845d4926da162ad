"""The precision of computation: float32, or bfloat16 where the hardware multiplies it faster.

Parameters, what heads read and give, and losses are float32 in either case. bfloat16 goes
through `torch.autocast`, which any backbone heeds that is made of torch's modules.
"""

from __future__ import annotations

import functools
import os
import time
from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager
from typing import Any, Literal, NamedTuple, get_args

import torch
from torch.nn import functional as F

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
        raise ConfigError(f"precision should be one of {', '.join(get_args(Setting))}, not {setting!r}")
    return setting


def resolved(setting: str, device: torch.device) -> Precision:
    """The precision for a setting on a device; see `choice`."""
    return choice(setting, device).precision


class Choice(NamedTuple):
    """A precision, and why it was taken."""

    precision: Precision
    reason: str


def choice(setting: str, device: torch.device) -> Choice:
    """Choose the precision for a setting: `auto` is bf16 where products are clearly faster in it."""
    if setting != "auto":
        return Choice("bf16" if setting == "bf16" else "fp32", "as the setting says")
    if device.type == "cuda":
        supported = bool(torch.cuda.is_bf16_supported(including_emulation=False))
        if supported:
            return Choice("bf16", "the GPU multiplies it")
        return Choice("fp32", "the GPU lacks bfloat16")
    return _choice_here() if device.type == "cpu" else Choice("fp32", f"nothing is known of {device.type}")


WORTHWHILE = 1.2
"""`auto` takes bfloat16 where a product is so many times as fast in it. Machines are far from that figure:
0.2 without instructions for it, 0.6 with AVX512_BF16 on Intel's Sapphire Rapids kept from its AMX, 2.2 on
AMD's Zen 4, 6 and more with AMX; so a busy machine decides as an idle one does."""


def choice_of_cpu(flags: Collection[str], speedup: Callable[[], float]) -> Choice:
    """Choose the precision for `auto` on a CPU.

    Args:
        flags: those of `amx_bf16` and `avx512_bf16` that it has.
        speedup: measures the speed of a product in bfloat16 relative to float32; only called where the flags
            do not decide.
    """
    if "amx_bf16" in flags:
        return Choice("bf16", "the CPU has amx_bf16")
    if "avx512_bf16" not in flags:
        return Choice("fp32", "the CPU has neither amx_bf16 nor avx512_bf16")
    times = speedup()
    reason = f"the CPU has avx512_bf16, and a product in bfloat16 is {times:.1f} times as fast"
    return Choice("bf16" if times >= WORTHWHILE else "fp32", reason)


@functools.cache
def _choice_here() -> Choice:
    has = torch.cpu.get_capabilities() if hasattr(torch.cpu, "get_capabilities") else {}
    # What oneDNN may use can be limited from outside; it then computes bfloat16 as a lesser CPU does.
    limit = os.environ.get("ONEDNN_MAX_CPU_ISA", os.environ.get("DNNL_MAX_CPU_ISA", "AMX")).upper()
    flags = {name for name in ("amx_bf16", "avx512_bf16") if has.get(name)}
    flags |= {"amx_bf16"} if torch.cpu._is_amx_tile_supported() else set()
    flags -= set() if "AMX" in limit or limit in ("DEFAULT", "ALL") else {"amx_bf16"}
    return choice_of_cpu(flags, _bf16_speedup)


@torch.inference_mode()
def _bf16_speedup() -> float:
    """Measure the speed of an encoder's product in bfloat16 relative to float32; takes some 50 ms.

    It counts the time of processors, of all threads together.
    """
    best = {}
    for dtype in (torch.float32, torch.bfloat16):
        tokens = torch.ones(512, 768, dtype=dtype)
        weight = torch.ones(768, 768, dtype=dtype)
        taken = []
        for _ in range(7):  # the first prepares the kernel
            # Wall time counts what else the machine does: it said 7 to 25 times where 2 is true.
            started = time.process_time()
            F.linear(tokens, weight)
            taken.append(time.process_time() - started)
        best[dtype] = min(taken)
    return best[torch.float32] / max(best[torch.bfloat16], 1e-9)  # clocks may be coarse


def computing(precision: Precision, device: torch.device) -> torch.autocast:
    """The context to call modules in; within fp32, a surrounding `torch.autocast` has no effect."""
    return torch.autocast(device.type, torch.bfloat16, enabled=precision == "bf16")


def compute_dtype(tensor: torch.Tensor) -> torch.dtype:
    """The dtype to compute with from `tensor` on: within `torch.autocast` the one it asks for."""
    device = tensor.device.type
    return torch.get_autocast_dtype(device) if torch.is_autocast_enabled(device) else tensor.dtype


@contextmanager
def tf32(allowed: bool | None) -> Iterator[None]:
    """Within it, NVIDIA GPUs from Ampere on may round float32 matrix products to TensorFloat-32, or may not.

    Args:
        allowed: None leaves it as torch has it.
    """
    if allowed is None:
        yield
        return
    matmul: Any = torch.backends.cuda.matmul
    name = "allow_tf32"
    value: bool | str = allowed
    try:
        before = matmul.allow_tf32
    except RuntimeError:  # the older name fails after a use of the newer one
        name = "fp32_precision"
        value = "tf32" if allowed else "ieee"
        before = matmul.fp32_precision
    setattr(matmul, name, value)
    try:
        yield
    finally:
        setattr(matmul, name, before)
