"""What the machine is: device, memory, precision and repeatable results."""

from __future__ import annotations

import ctypes
import functools
import os
import sys
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any, Literal, get_args

import torch
from torch import Tensor, nn
from torch.nn.modules.module import register_module_parameter_registration_hook

from palm.core.component import choice_problems, raise_any
from palm.core.errors import ConfigError, StorageError
from palm.core.logging import logger

_TRIM_THRESHOLD = -1
_MMAP_THRESHOLD = -3
"""`M_TRIM_THRESHOLD` and `M_MMAP_THRESHOLD` of glibc's `malloc.h`."""


@functools.cache
def keep_freed_memory() -> bool:
    """Make glibc keep up to 2 GiB of freed memory, for the whole process; return True if it does.

    Only the time at which memory returns to the system changes, never a result. Steps on short rows are 10 to
    18 % faster (Zen 4, bf16).
    """
    # Otherwise every step gets the memory for a gradient of 47 MB (MiniLM's word table) from the system,
    # which clears its pages one by one: 15,000 in a step on rows of 14 tokens, a fifth of its time.
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None) if sys.platform == "linux" else None
    if mallopt is None:
        return False
    # Older versions of glibc refuse more than 32 MiB.
    accepted = mallopt(_MMAP_THRESHOLD, 1 << 30) or mallopt(_MMAP_THRESHOLD, 32 << 20)
    keeps = bool(accepted and mallopt(_TRIM_THRESHOLD, (1 << 31) - 1))
    logger.debug("mallopt: this process keeps up to 2 GiB of freed memory: %s", keeps)
    return keeps


FACTOR = 2
SLACK = 1 << 20
MORE_TENSORS = 512
"""A module may have twice as many values as the weights and a million more (a pooler that the weights lack, a
table that a shared one replaces), in twice as many tensors and 512 more: shapes are compared afterwards."""


@contextmanager
def within_weights(weights: Mapping[str, Tensor], place: object) -> Iterator[None]:
    """Fail if a module that is built in this block becomes much larger than its weights.

    A wrong size in a description then costs no memory: torch's modules register a parameter before they fill
    it, and memory that is never written is never committed. The hook is process-wide during the block.

    Args:
        weights: the weights that will be loaded; tensors without storage will do.
        place: where the modules are described, for the message.

    Raises:
        StorageError: the modules become too large.
    """
    numbers = FACTOR * sum(value.numel() for value in weights.values()) + SLACK
    tensors = FACTOR * len(weights) + MORE_TENSORS
    thread = threading.get_ident()
    asked = [0, 0]

    def count(module: nn.Module, name: str, parameter: nn.Parameter) -> None:
        if threading.get_ident() != thread:  # the hook is also called for other threads
            return
        asked[0] += parameter.numel()
        asked[1] += 1
        if asked[0] > numbers or asked[1] > tensors:
            raise StorageError(
                f"{place}: the settings ask for far more parameters than the {len(weights)} saved tensors; "
                f"a size in them is wrong ({type(module).__name__}.{name} is {list(parameter.shape)})"
            )

    hook = register_module_parameter_registration_hook(count)
    try:
        yield
    finally:
        hook.remove()


DeviceName = Literal["auto", "cpu", "cuda"]

_log_once = functools.cache(logger.info)


def device_of(use_gpu: bool, name: DeviceName = "auto") -> torch.device:
    """Return the device for the settings `use_gpu` and `device`; log a fallback to the CPU once.

    Raises:
        ConfigError: `device` is cuda, and no GPU is visible.
    """
    raise_any(choice_problems(get_args(DeviceName), device=name))
    wanted = name == "cuda" or (name == "auto" and use_gpu)
    if wanted and torch.cuda.is_available():
        return torch.device("cuda")
    others = [kind for kind in ("mps", "xpu") if getattr(torch, kind).is_available()]
    unused = f" (palm supports CUDA and ROCm, not {others[0]})" if others else ""
    if name == "cuda":
        raise ConfigError(
            f"device: no GPU is visible{unused}; check CUDA_VISIBLE_DEVICES, or use auto or cpu"
        )
    if wanted:
        _log_once(f"no GPU is visible{unused}: running on the CPU")
    return torch.device("cpu")


Setting = Literal["auto", "fp32", "bf16"]
"""Values of the setting `precision`."""

Precision = Literal["fp32", "bf16"]
"""Precisions in which palm computes.

Parameters, the inputs and outputs of heads, and losses are float32 in either case. bf16 uses
`torch.autocast`, which works for every backbone made of torch's modules.
"""


def checked(setting: str) -> str:
    """Return a setting that was given in Python, after checking it.

    Raises:
        ConfigError: it is not a `Setting`.
    """
    raise_any(choice_problems(get_args(Setting), precision=setting))
    return setting


def resolved(setting: str, device: torch.device) -> Precision:
    """Return the precision for a setting on a device; see `choice`."""
    return choice(setting, device)[0]


def choice(setting: str, device: torch.device) -> tuple[Precision, str]:
    """Choose a precision, with the reason: `auto` is bf16 on devices that were measured to be faster with it.

    Args:
        setting: auto, fp32 or bf16.
        device: the device that computes.
    """
    if setting != "auto":
        return "bf16" if setting == "bf16" else "fp32", "as configured"
    if device.type == "cuda":
        if torch.cuda.is_bf16_supported(including_emulation=False):
            return "bf16", "the GPU supports it"
        return "fp32", "the GPU does not support bfloat16"
    if device.type != "cpu":
        return "fp32", f"the speed of bfloat16 on {device.type} is unknown"
    known = torch.cpu.get_capabilities() if hasattr(torch.cpu, "get_capabilities") else {}
    return choice_of_cpu({**known, "amx_bf16": torch.cpu._is_amx_tile_supported()})


def choice_of_cpu(capabilities: Mapping[str, Any]) -> tuple[Precision, str]:
    """Choose the precision for `auto` on a CPU.

    Training MiniLM in bfloat16 takes 0.44 to 0.65 of the time of float32 with AMX, and 0.5 to 0.6 with
    AVX512_BF16 on AMD (Zen 4; 0.35 on Zen 5). A product takes 1.7 times as long with AVX512_BF16 on Intel
    (Sapphire Rapids, AMX disabled), and 5 times as long without either.

    Args:
        capabilities: as in `torch.cpu.get_capabilities`.
    """
    if capabilities.get("amx_bf16"):
        return "bf16", "the CPU has amx_bf16"
    if not capabilities.get("avx512_bf16"):
        return "fp32", "the CPU has neither amx_bf16 nor avx512_bf16"
    if "Intel" in capabilities.get("cpu_name", ""):
        return "fp32", "the CPU has avx512_bf16, but it is Intel's, which is slower in bfloat16"
    return "bf16", "the CPU has avx512_bf16"


def computing(precision: Precision, device: torch.device) -> torch.autocast:
    """Return the context to call modules in; fp32 disables a surrounding `torch.autocast`."""
    return torch.autocast(device.type, torch.bfloat16, enabled=precision == "bf16")


def compute_dtype(tensor: torch.Tensor) -> torch.dtype:
    """Return the dtype of computations on `tensor`: that of `torch.autocast` if it is enabled."""
    device = tensor.device.type
    return torch.get_autocast_dtype(device) if torch.is_autocast_enabled(device) else tensor.dtype


@contextmanager
def fixed_order(wanted: bool) -> Iterator[None]:
    """Make torch use deterministic kernels, and refuse operations that have none.

    Args:
        wanted: False keeps torch's current setting.
    """
    if not wanted:
        yield
        return
    # cuBLAS reads this at its first use, and torch refuses products without it.
    os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
    before = torch.are_deterministic_algorithms_enabled()
    checks: Any = torch.utils.deterministic
    was_filled = checks.fill_uninitialized_memory
    torch.use_deterministic_algorithms(True)
    checks.fill_uninitialized_memory = False  # only for debugging, and costs time in every step
    try:
        yield
    finally:
        torch.use_deterministic_algorithms(before)
        checks.fill_uninitialized_memory = was_filled
