"""The choice of a run's precision, by timing passes over its own rows where CPU flags do not decide."""

from __future__ import annotations

import torch

from palm.core.numerics.precision import Choice, Precision, choice, is_timed, measured_speedup
from palm.core.tensor_specs import Tensors
from palm.train.model import MultiTaskModel, restored_modes
from palm.train.recipe import Recipe

MAX_OPERATIONS = 5e10
"""Maximum number of floating-point operations in a timed pass, which has at least one row."""


def chosen_precision(recipe: Recipe, model: MultiTaskModel) -> Choice:
    """Choose the precision of a run before its first step, with the reason.

    If it has to be timed, three forward and backward passes run in each precision on the first target, with
    as many rows of its first batch as `MAX_OPERATIONS` allows. They train nothing.

    Args:
        recipe: its `precision` decides unless it is auto.
        model: on its device, without gradients; the random state and buffers are restored afterwards.
    """
    task = next((each for each in recipe.tasks if each.is_target and each.stream is not None), None)
    if task is None or task.stream is None or not is_timed(recipe.precision, recipe.device):
        return choice(recipe.precision, recipe.device)
    batch = task.stream.batch(0)
    rows = len(task.stream.picks(0))
    if "token_ids" in batch:
        weights = sum(each.numel() for each in model.backbone.parameters() if each.ndim > 1)
        work = 6 * weights * batch["token_ids"].numel()  # forward, and twice as much backward
        rows = min(rows, max(1, int(rows * MAX_OPERATIONS / work)))
        batch = task.stream.batch(0, rows)
    try:
        speedup = _speedup(model, task.name, batch)
    except Exception:
        # The first step reports a batch that cannot be computed, with its place.
        return choice(recipe.precision, recipe.device)
    timed = f"a training pass over {rows} rows of {task.name}"
    return choice(recipe.precision, recipe.device, lambda: speedup, timed)


def _speedup(model: MultiTaskModel, task: str, batch: Tensors) -> float:
    def compute(precision: Precision) -> None:
        model.precision = precision
        model([task], [batch]).sum().backward()
        model.zero_grad()

    head = model.head(task)
    buffers = {name: value.clone() for name, value in model.named_buffers()}
    with restored_modes(head), torch.random.fork_rng(devices=[]):
        head.eval()  # in training mode its loss may wait for other ranks, which do not time passes
        try:
            return measured_speedup(compute)
        finally:
            model.zero_grad()
            for name, value in model.named_buffers():
                value.copy_(buffers[name])
