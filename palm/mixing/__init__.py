"""Mixing strategies by name: they draw the task of each step and plan the number of steps of each task."""

from __future__ import annotations

from palm.mixing.base import MIXINGS, Mixing, TaskProgress
from palm.mixing.strategies import Annealed, DevScore, MixRatio, Proportional, RoundRobin, Temperature

__all__ = [
    "MIXINGS",
    "Annealed",
    "DevScore",
    "MixRatio",
    "Mixing",
    "Proportional",
    "RoundRobin",
    "TaskProgress",
    "Temperature",
]
