"""Learning-rate schedules by name, and under the class names of PaddlePALM 2.x."""

from __future__ import annotations

from palm.lr_sched.base import LR_SCHEDULES, Schedule, schedule_of_run
from palm.lr_sched.schedules import (
    NoamScheduler,
    TriangularSchedualer,
    TriangularScheduler,
    WarmupSchedualer,
    WarmupScheduler,
)

__all__ = [
    "LR_SCHEDULES",
    "NoamScheduler",
    "Schedule",
    "TriangularSchedualer",
    "TriangularScheduler",
    "WarmupSchedualer",
    "WarmupScheduler",
    "schedule_of_run",
]
