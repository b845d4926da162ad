"""Learning-rate schedules, registered by name."""

from palm.lr_sched.schedules import (
    HORIZON,
    LR_SCHEDULES,
    CosineScheduler,
    LinearScheduler,
    NoamScheduler,
    PolynomialScheduler,
    Schedule,
    SlantedTriangularScheduler,
    TriangularScheduler,
    WarmupScheduler,
    schedule_of_run,
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
