"""The way in which CPU threads wait for each other: a short while awake, then asleep."""

from __future__ import annotations

import os
import sys

SPINS = "2000"
"""Turns that a waiting thread of GNU's OpenMP makes before it sleeps; its own default is 300,000, some 10 ms.

Beside other programs a thread that spins takes the time of the one it waits for. On two cores with 1.3 others
busy, a step took 0.31 times as long with 2,000 as with the default; on cores of its own, 1.02 times in fp32
and 1.08 times in bf16 (docs/speed.md).
"""

SETTINGS = ("OMP_WAIT_POLICY", "GOMP_SPINCOUNT")


def limit_spinning() -> None:
    """Let waiting threads sleep soon, unless the environment says how they wait or torch is loaded."""
    if "torch" not in sys.modules and not any(name in os.environ for name in SETTINGS):
        os.environ["GOMP_SPINCOUNT"] = SPINS


def waiting() -> str:
    """Say for the log how threads wait."""
    given = [f"{name}={os.environ[name]}" for name in SETTINGS if name in os.environ]
    return ", ".join(given) or "OpenMP's default"
