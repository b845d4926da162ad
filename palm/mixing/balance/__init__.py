"""Methods that weight the tasks of a step against each other, by name; without one, losses are summed."""

from __future__ import annotations

from palm.mixing.balance.base import BALANCES, Balance
from palm.mixing.balance.gradients import MGDA, CAGrad, PCGrad, UPGrad
from palm.mixing.balance.losses import DWA, FAMO, Uncertainty

__all__ = ["BALANCES", "DWA", "FAMO", "MGDA", "Balance", "CAGrad", "PCGrad", "UPGrad", "Uncertainty"]
