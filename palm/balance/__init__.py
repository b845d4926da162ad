"""How the tasks of one step are weighed against each other, by name; a run sums up their losses without."""

from __future__ import annotations

from palm.balance.base import BALANCES, Balance
from palm.balance.gradients import MGDA, CAGrad, GradNorm, NashMTL, PCGrad, UPGrad
from palm.balance.losses import DWA, FAMO, Uncertainty

__all__ = [
    "BALANCES",
    "DWA",
    "FAMO",
    "MGDA",
    "Balance",
    "CAGrad",
    "GradNorm",
    "NashMTL",
    "PCGrad",
    "UPGrad",
    "Uncertainty",
]
