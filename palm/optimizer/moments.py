"""Adam's moments kept out of the range in which a processor computes ten times slower."""

from __future__ import annotations

from typing import Any

import torch

NEGLIGIBLE = {"exp_avg": 1e-28, "exp_avg_sq": 1e-35}
"""Below these, a running mean becomes 0: beside an epsilon of 1e-8 it moves no parameter."""

PERIOD = 50
"""Steps between two looks; 0.9 ** PERIOD leaves a mean, times the rate, a normal float32 number."""


def keep_moments_normal(optimizer: torch.optim.Optimizer) -> None:
    """Let `optimizer` drop negligible moments, every `PERIOD` steps of a parameter.

    The mean gradient of an embedding row whose word is not seen any more shrinks by a tenth a step;
    after some 750 steps it is a denormal number, on which a CPU (not a GPU) is slow. To let the
    processor round these to zero, `torch.set_flush_denormal`, would change the arithmetic of the
    user's whole process, and does not reach threads that are running already.
    """
    optimizer.register_step_post_hook(_look)


def _look(optimizer: torch.optim.Optimizer, *_: Any) -> None:
    for state in optimizer.state.values():
        if state["exp_avg"].device.type == "cpu" and state["step"].item() % PERIOD == 0:
            for name, least in NEGLIGIBLE.items():
                torch.hardshrink(state[name], least, out=state[name])
