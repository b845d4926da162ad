"""Optimizers by name: settings first, a torch optimizer when there is a model."""

from __future__ import annotations

from palm.optimizer.adamw import Adam, AdamW
from palm.optimizer.base import OPTIMIZERS, GradClipType, Optimizer, clip

__all__ = ["OPTIMIZERS", "Adam", "AdamW", "GradClipType", "Optimizer", "clip"]
