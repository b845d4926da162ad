"""Learning-rate schedules, registered by name, and under the class names of PaddlePALM 2.x."""

from __future__ import annotations

from palm.lr_sched import base_schedualer
from palm.lr_sched.base import HORIZON, LR_SCHEDULES, Schedule, schedule_of_run
from palm.lr_sched.base_schedualer import Schedualer
from palm.lr_sched.decays import (
    CosineScheduler,
    LinearScheduler,
    PolynomialScheduler,
    SlantedTriangularScheduler,
)
from palm.lr_sched.schedules import (
    NoamScheduler,
    TriangularSchedualer,
    TriangularScheduler,
    WarmupSchedualer,
    WarmupScheduler,
)

__all__ = [
    "HORIZON",
    "LR_SCHEDULES",
    "CosineScheduler",
    "LinearScheduler",
    "NoamScheduler",
    "PolynomialScheduler",
    "Schedualer",
    "Schedule",
    "SlantedTriangularScheduler",
    "TriangularSchedualer",
    "TriangularScheduler",
    "WarmupSchedualer",
    "WarmupScheduler",
    "base_schedualer",
    "schedule_of_run",
]
