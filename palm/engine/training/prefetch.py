"""The next step's batches, made while a GPU computes this one's."""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import Future, ThreadPoolExecutor

import torch

from palm.backbone.base import Backbone
from palm.core.tensor_specs import Tensors
from palm.engine.training.device_transfer import prepared
from palm.engine.training.task import Task


def prefetches(device: torch.device) -> bool:
    """Return whether the host has time while a step is computed."""
    return device.type == "cuda"


class Prefetcher:
    """Makes one step's batches in a thread of its own.

    Batches are functions of a task's step, so it does not matter who makes them, and when. What was made for
    other tasks or steps than those that are asked for, since a score changed the draw, is thrown away.

    Args:
        device: where batches are computed; they are prepared for it.
        backbone: what they are computed by.
    """

    def __init__(self, device: torch.device, backbone: Backbone) -> None:
        self._device = device
        self._backbone = backbone
        # A single thread makes all batches, since a stream serves one caller at a time.
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="palm-prefetch")
        self._coming: dict[tuple[str, int], Future[list[Tensors]]] = {}

    def begin(self, tasks: Sequence[Task]) -> None:
        """Begin to make the batches of the tasks' next steps."""
        self._coming = {
            (task.name, task.step): self._thread.submit(self._made, task, task.step) for task in tasks
        }

    def batches(self, tasks: Sequence[Task]) -> list[list[Tensors]]:
        """Per task the batches of its next step.

        Raises:
            Exception: what making them raised.
        """
        # A score has changed the draw, or the run was resumed: what was made ahead belongs to no step.
        if self._coming.keys() != {(task.name, task.step) for task in tasks}:
            self.begin(tasks)
        return [self._coming[task.name, task.step].result() for task in tasks]

    def _made(self, task: Task, step: int) -> list[Tensors]:
        return [prepared(batch, self._device, self._backbone) for batch in task.batches(step)]
