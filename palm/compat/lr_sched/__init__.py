"""Schedules under the names of PaddlePALM 2.x, in its spelling; palm's own have the same signatures."""

from palm.compat.lr_sched import base_schedualer
from palm.compat.lr_sched.base_schedualer import Schedualer
from palm.optimizer.lr_sched import *  # noqa: F403
from palm.optimizer.lr_sched import TriangularScheduler, WarmupScheduler

__all__ = ["Schedualer", "TriangularSchedualer", "WarmupSchedualer", "base_schedualer"]

TriangularSchedualer = TriangularScheduler
WarmupSchedualer = WarmupScheduler
