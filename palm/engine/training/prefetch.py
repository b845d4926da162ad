"""The next step's batches, made while a GPU computes this one's."""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import Future, ThreadPoolExecutor

import torch

from palm.backbone.base import Backbone
from palm.core.tensor_specs import Tensors
from palm.engine.training.device_transfer import prepared
from palm.engine.training.task import Task

Batches = list[list[Tensors]]
"""Per task those of its step."""


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
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="palm-prefetch")
        self._coming: tuple[list[tuple[str, int]], Future[Batches]] | None = None

    def begin(self, tasks: Sequence[Task]) -> None:
        """Begin to make the batches of the tasks' next steps."""
        wanted = [(task, task.step) for task in tasks]
        self._coming = _names(tasks), self._thread.submit(self._made, wanted)

    def batches(self, tasks: Sequence[Task]) -> Batches:
        """The batches of the tasks' next steps.

        Raises:
            Exception: what making them raised.
        """
        coming = self._coming
        self._coming = None
        if coming is not None and coming[0] == _names(tasks):
            return coming[1].result()
        if coming is not None:
            coming[1].exception()  # streams serve one at a time
        return self._made([(task, task.step) for task in tasks])

    def _made(self, wanted: Sequence[tuple[Task, int]]) -> Batches:
        return [
            [prepared(batch, self._device, self._backbone) for batch in task.batches(step)]
            for task, step in wanted
        ]


def _names(tasks: Sequence[Task]) -> list[tuple[str, int]]:
    return [(task.name, task.step) for task in tasks]
