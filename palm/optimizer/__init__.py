"""Optimizers, registered by name: settings that build a torch optimizer."""

from __future__ import annotations

from palm.optimizer.adamw import AdamW
from palm.optimizer.adamwdl import AdamWDL, layerwise_lr_decay
from palm.optimizer.base import OPTIMIZERS, GradClipType, Optimizer, clip
from palm.optimizer.groups import ParameterGroups
from palm.optimizer.lamb import Lamb, trust_ratios

__all__ = [
    "OPTIMIZERS",
    "AdamW",
    "AdamWDL",
    "GradClipType",
    "Lamb",
    "Optimizer",
    "ParameterGroups",
    "clip",
    "layerwise_lr_decay",
    "trust_ratios",
]
