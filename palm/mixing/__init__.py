"""Mixing strategies by name: they draw the task of each step and plan the number of steps of each task."""

from __future__ import annotations

from palm.mixing.strategies import (
    MIXINGS,
    Mixing,
    MixRatio,
    Proportional,
    RoundRobin,
    TaskProgress,
    Temperature,
)

__all__ = [
    "MIXINGS",
    "MixRatio",
    "Mixing",
    "Proportional",
    "RoundRobin",
    "TaskProgress",
    "Temperature",
]
