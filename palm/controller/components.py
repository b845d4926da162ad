"""All registries of components, by the setting that selects an entry."""

from __future__ import annotations

from typing import Any

from palm.backbone import BACKBONES
from palm.core.registry import Registry
from palm.lr_sched import LR_SCHEDULES
from palm.metrics import METRICS
from palm.mixing import MIXINGS
from palm.mixing.balance import BALANCES
from palm.optimizer import OPTIMIZERS
from palm.paradigm import HEADS
from palm.reader import READERS

# In the order of `palm ls`.
_ALL: list[Registry[Any]] = [READERS, HEADS, BACKBONES, METRICS, MIXINGS, OPTIMIZERS, LR_SCHEDULES, BALANCES]
REGISTRIES = {registry.setting: registry for registry in _ALL}
