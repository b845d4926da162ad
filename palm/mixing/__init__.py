"""Mixing strategies by name: which task a step trains, and how many steps each task is planned to get."""

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
