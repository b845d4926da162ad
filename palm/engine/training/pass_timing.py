"""The precision of a run: where the CPU's kind does not tell, by the time of a pass over its own rows."""

from __future__ import annotations

import torch

from palm.core.numerics.precision import Choice, Precision, choice, is_timed, measured_speedup
from palm.core.tensor_specs import Tensors
from palm.engine.training.model import MultiTaskModel, restored_modes
from palm.engine.training.recipe import Recipe

WORK = 5e10
"""Floating-point operations of a timed pass at most, though always one row."""


def chosen_precision(recipe: Recipe, model: MultiTaskModel) -> Choice:
    """Choose the precision of a run before its first step, and say why.

    Where it has to be timed, three passes in each precision, forward and backward, train nothing: of the
    first target, on as many rows of its first batch as `WORK` allows.

    Args:
        recipe: its `precision` decides if it is not auto.
        model: on its device, without gradients; random numbers and buffers are afterwards as they were.
    """
    task = next((each for each in recipe.tasks if each.is_target and each.stream is not None), None)
    if task is None or task.stream is None or not is_timed(recipe.precision, recipe.device):
        return choice(recipe.precision, recipe.device)
    batch = task.stream.batch(0)
    rows = len(task.stream.picks(0))
    if "token_ids" in batch:
        weights = sum(each.numel() for each in model.backbone.parameters() if each.ndim > 1)
        work = 6 * weights * batch["token_ids"].numel()  # forward, and twice as much backward
        rows = min(rows, max(1, int(rows * WORK / work)))
        batch = task.stream.batch(0, rows)
    try:
        speedup = _speedup(model, task.name, batch)
    except Exception:
        # A batch that cannot be computed is reported by the first step, with its place.
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
        head.eval()  # while training, its loss may wait for the other ranks, which time nothing
        try:
            return measured_speedup(compute)
        finally:
            model.zero_grad()
            for name, value in model.named_buffers():
                value.copy_(buffers[name])
