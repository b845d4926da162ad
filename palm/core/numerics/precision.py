"""The precision of computation: float32, or bfloat16 where the hardware is faster with it.

Parameters, the inputs and outputs of heads, and losses are float32 in either case. bfloat16 uses
`torch.autocast`, which works for every backbone made of torch's modules.
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
    """A precision, the reason for it, and True if it depends on a measurement, which may vary."""

    precision: Precision
    reason: str
    is_timed: bool = False


def choice(
    setting: str,
    device: torch.device,
    speedup: Callable[[], float] | None = None,
    timed: str = "an encoder's product",
) -> Choice:
    """Choose the precision for a setting: `auto` is bf16 if the device is clearly faster with it.

    Args:
        setting: auto, fp32 or bf16.
        device: the device that computes.
        speedup: as in `choice_of_cpu`; by default, one product of BERT-base's width is timed.
        timed: the computation that `speedup` times, for the reason.
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
    return choice_of_cpu(_flags(), speedup or _bf16_speedup, timed)


WORTHWHILE = 1.2
"""Speedup from which `auto` uses bfloat16. Large products are far from it: 0.2 without instructions for
bfloat16, 0.6 with AVX512_BF16 on Intel's Sapphire Rapids with AMX disabled, 2.2 on AMD's Zen 4, 6 and more
with AMX. Training passes of small encoders on a Zen 4 are near it (1.1 to 1.4), because the products within
attention are slower in bfloat16 there."""


def choice_of_cpu(
    flags: Collection[str], speedup: Callable[[], float], timed: str = "an encoder's product"
) -> Choice:
    """Choose the precision for `auto` on a CPU.

    Args:
        flags: which of `amx_bf16` and `avx512_bf16` it has.
        speedup: measures the speed in bfloat16 relative to float32, in CPU time; only called if the flags do
            not decide.
        timed: the computation that `speedup` times, for the reason.
    """
    if "amx_bf16" in flags:
        return Choice("bf16", "the CPU has amx_bf16")
    if "avx512_bf16" not in flags:
        return Choice("fp32", "the CPU has neither amx_bf16 nor avx512_bf16")
    times = speedup()
    reason = f"the CPU has avx512_bf16, and {timed} is {times:.2f} times as fast in bfloat16, by CPU time"
    return Choice("bf16" if times >= WORTHWHILE else "fp32", reason, is_timed=True)


def is_timed(setting: str, device: torch.device) -> bool:
    """Check whether the precision for a setting on a device depends on a measurement."""
    return setting == "auto" and device.type == "cpu" and _flags() == {"avx512_bf16"}


@functools.cache
def _flags() -> frozenset[str]:
    has = torch.cpu.get_capabilities() if hasattr(torch.cpu, "get_capabilities") else {}
    # The environment can limit the instructions that oneDNN uses.
    limit = os.environ.get("ONEDNN_MAX_CPU_ISA", os.environ.get("DNNL_MAX_CPU_ISA", "AMX")).upper()
    flags = {name for name in ("amx_bf16", "avx512_bf16") if has.get(name)}
    flags |= {"amx_bf16"} if torch.cpu._is_amx_tile_supported() else set()
    flags -= set() if "AMX" in limit or limit in ("DEFAULT", "ALL") else {"amx_bf16"}
    return frozenset(flags)


MEASURED_SECONDS = 0.02
"""Minimum CPU time of the timed calls in each precision. With two calls of 3 ms, equal runs measured 0.61 to
0.95, and 1 of 1,146 runs on a busy machine chose another precision; now they measure 0.73 to 0.79."""


def measured_speedup(compute: Callable[[Precision], object], repeats: int = 2) -> float:
    """Measure the speed of `compute` in bfloat16 relative to float32, in CPU time of all threads.

    Args:
        compute: called in each precision once as a warm-up, then `repeats` times or until the calls have
            taken `MEASURED_SECONDS`, whichever is later, alternating.
        repeats: minimum number of timed calls in each precision; the fastest counts.
    """
    taken: dict[Precision, list[float]] = {"fp32": [], "bf16": []}
    while any(len(times) <= repeats or sum(times[1:]) < MEASURED_SECONDS for times in taken.values()):
        for precision, times in taken.items():
            # Wall time includes other processes: it gave 7 to 25 where the true ratio is 2.
            started = time.process_time()
            compute(precision)
            times.append(time.process_time() - started)
    best = {precision: min(times[1:]) for precision, times in taken.items()}
    return best["fp32"] / max(best["bf16"], 1e-9)  # a coarse clock may give 0


@functools.cache
@torch.inference_mode()
def _bf16_speedup() -> float:
    """Measure the speedup of one product of BERT-base's width; takes about 50 ms."""
    tokens = torch.ones(512, 768)
    weight = torch.ones(768, 768)
    operands = {"fp32": (tokens, weight), "bf16": (tokens.bfloat16(), weight.bfloat16())}
    return measured_speedup(lambda precision: F.linear(*operands[precision]), repeats=6)


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
