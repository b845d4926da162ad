"""Spinning of CPU threads that wait for each other, before they sleep."""

from __future__ import annotations

import os
import sys

SPINS = "2000"
"""Spins of a waiting thread in GNU OpenMP before it sleeps; the default is 300,000, about 10 ms.

On a busy machine, a spinning thread takes CPU time from the one that it waits for. On two cores with 1.3
other processes busy, a step took 0.31 times as long with 2,000 as with the default; on idle cores, 1.02 times
in fp32 and 1.08 times in bf16 (docs/speed.md).
"""

SETTINGS = ("OMP_WAIT_POLICY", "GOMP_SPINCOUNT")


def limit_spinning() -> None:
    """Make waiting threads sleep soon, unless the environment sets this or torch is already loaded."""
    if "torch" not in sys.modules and not any(name in os.environ for name in SETTINGS):
        os.environ["GOMP_SPINCOUNT"] = SPINS


def waiting() -> str:
    """Describe for the log how threads wait."""
    given = [f"{name}={os.environ[name]}" for name in SETTINGS if name in os.environ]
    return ", ".join(given) or "OpenMP's default"
