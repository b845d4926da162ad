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

from palm.core.checks import choice_problems, raise_any

Setting = Literal["auto", "fp32", "bf16"]
"""What a user may ask for."""

Precision = Literal["fp32", "bf16"]
"""What is computed with."""


def checked(setting: str) -> str:
    """A setting that was given from Python.

    Raises:
        ConfigError: there is no such one.
    """
    raise_any(choice_problems(get_args(Setting), precision=setting))
    return setting


def resolved(setting: str, device: torch.device) -> Precision:
    """The precision for a setting on a device; see `choice`."""
    return choice(setting, device).precision


class Choice(NamedTuple):
    """A precision, why it was taken, and whether by a measurement, which may be another next time."""

    precision: Precision
    reason: str
    is_timed: bool = False


def choice(
    setting: str,
    device: torch.device,
    speedup: Callable[[], float] | None = None,
    timed: str = "an encoder's product",
) -> Choice:
    """Choose the precision for a setting: `auto` is bf16 where the device is clearly faster in it.

    Args:
        setting: auto, fp32 or bf16.
        device: where is computed.
        speedup: as `choice_of_cpu` takes it; by default it times one product of BERT-base's width.
        timed: what it times, for the reason.
    """
    if setting != "auto":
        return Choice("bf16" if setting == "bf16" else "fp32", "as the setting says")
    if device.type == "cuda":
        supported = bool(torch.cuda.is_bf16_supported(including_emulation=False))
        if supported:
            return Choice("bf16", "the GPU multiplies it")
        return Choice("fp32", "the GPU lacks bfloat16")
    if device.type != "cpu":
        return Choice("fp32", f"nothing is known of {device.type}")
    return choice_of_cpu(_flags(), speedup or _bf16_speedup, timed)


WORTHWHILE = 1.2
"""`auto` takes bfloat16 where what it times is so many times as fast in it. Large products are far from that:
0.2 without instructions for it, 0.6 with AVX512_BF16 on Intel's Sapphire Rapids kept from its AMX, 2.2 on
AMD's Zen 4, 6 and more with AMX. Training passes of small encoders on a Zen 4 are near it (1.1 to 1.4),
because products within attention are slower in bfloat16 there."""


def choice_of_cpu(
    flags: Collection[str], speedup: Callable[[], float], timed: str = "an encoder's product"
) -> Choice:
    """Choose the precision for `auto` on a CPU.

    Args:
        flags: those of `amx_bf16` and `avx512_bf16` that it has.
        speedup: measures the speed in bfloat16 relative to float32, in CPU time; only called where the flags
            do not decide.
        timed: what it times, for the reason.
    """
    if "amx_bf16" in flags:
        return Choice("bf16", "the CPU has amx_bf16")
    if "avx512_bf16" not in flags:
        return Choice("fp32", "the CPU has neither amx_bf16 nor avx512_bf16")
    times = speedup()
    reason = f"the CPU has avx512_bf16, and {timed} is {times:.2f} times as fast in bfloat16, by CPU time"
    return Choice("bf16" if times >= WORTHWHILE else "fp32", reason, is_timed=True)


def is_timed(setting: str, device: torch.device) -> bool:
    """Return whether a measurement decides a setting on a device."""
    return setting == "auto" and device.type == "cpu" and _flags() == {"avx512_bf16"}


@functools.cache
def _flags() -> frozenset[str]:
    has = torch.cpu.get_capabilities() if hasattr(torch.cpu, "get_capabilities") else {}
    # What oneDNN may use can be limited from outside; it then computes bfloat16 as a lesser CPU does.
    limit = os.environ.get("ONEDNN_MAX_CPU_ISA", os.environ.get("DNNL_MAX_CPU_ISA", "AMX")).upper()
    flags = {name for name in ("amx_bf16", "avx512_bf16") if has.get(name)}
    flags |= {"amx_bf16"} if torch.cpu._is_amx_tile_supported() else set()
    flags -= set() if "AMX" in limit or limit in ("DEFAULT", "ALL") else {"amx_bf16"}
    return frozenset(flags)


def measured_speedup(compute: Callable[[Precision], object], repeats: int = 2) -> float:
    """Measure the speed of `compute` in bfloat16 relative to float32, in CPU time of all threads.

    Args:
        compute: called in each precision once to prepare kernels, then `repeats` times, in turns.
        repeats: how often each is timed; the fastest counts.
    """
    taken: dict[Precision, list[float]] = {"fp32": [], "bf16": []}
    for _ in range(1 + repeats):
        for precision, times in taken.items():
            # Wall time counts what else the machine does: it said 7 to 25 times where 2 is true.
            started = time.process_time()
            compute(precision)
            times.append(time.process_time() - started)
    best = {precision: min(times[1:]) for precision, times in taken.items()}
    return best["fp32"] / max(best["bf16"], 1e-9)  # clocks may be coarse


@functools.cache
@torch.inference_mode()
def _bf16_speedup() -> float:
    """Measure it for one product of BERT-base's width; takes some 50 ms."""
    tokens = torch.ones(512, 768)
    weight = torch.ones(768, 768)
    operands = {"fp32": (tokens, weight), "bf16": (tokens.bfloat16(), weight.bfloat16())}
    return measured_speedup(lambda precision: F.linear(*operands[precision]), repeats=6)


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
