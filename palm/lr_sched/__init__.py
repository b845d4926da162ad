"""Learning-rate schedules, registered by name."""

from palm.lr_sched.base import HORIZON, LR_SCHEDULES, Schedule, schedule_of_run
from palm.lr_sched.schedules import (
    CosineScheduler,
    LinearScheduler,
    NoamScheduler,
    PolynomialScheduler,
    SlantedTriangularScheduler,
    TriangularScheduler,
    WarmupScheduler,
)

__all__ = [
    "HORIZON",
    "LR_SCHEDULES",
    "CosineScheduler",
    "LinearScheduler",
    "NoamScheduler",
    "PolynomialScheduler",
    "Schedule",
    "SlantedTriangularScheduler",
    "TriangularScheduler",
    "WarmupScheduler",
    "schedule_of_run",
]
