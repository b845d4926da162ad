"""Optimizers, registered by name: settings that build a torch optimizer; and schedules of their rates."""

from __future__ import annotations

from palm.optimizer import lr_sched
from palm.optimizer.optimizers import (
    OPTIMIZERS,
    AdamW,
    AdamWDL,
    Lamb,
    Optimizer,
    ParameterGroups,
    clip,
    layerwise_lr_decay,
)

__all__ = [
    "OPTIMIZERS",
    "AdamW",
    "AdamWDL",
    "Lamb",
    "Optimizer",
    "ParameterGroups",
    "clip",
    "layerwise_lr_decay",
    "lr_sched",
]
