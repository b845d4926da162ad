"""Prefetching: the batches of the next step are made while a GPU computes the present one."""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import Future, ThreadPoolExecutor

import torch

from palm.backbone.base import Backbone
from palm.core.tensor_specs import Tensors
from palm.train.device_transfer import prepared
from palm.train.task import TaskState


def prefetches(device: torch.device) -> bool:
    """Check whether the host is idle while a step is computed."""
    return device.type == "cuda"


class Prefetcher:
    """Makes the batches of the next step in a separate thread.

    Batches are functions of a task's step, so it does not matter where and when they are made. Batches of
    tasks or steps that are not requested, because a score changed the draw, are discarded.

    Args:
        device: the device for which batches are prepared.
        backbone: the encoder of the batches.
    """

    def __init__(self, device: torch.device, backbone: Backbone) -> None:
        self._device = device
        self._backbone = backbone
        # A single thread, because a stream is not thread-safe.
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="palm-prefetch")
        self._pending: dict[tuple[str, int], Future[list[Tensors]]] = {}

    def begin(self, tasks: Sequence[TaskState]) -> None:
        """Start making the batches of the tasks' next steps."""
        self._pending = {
            (task.name, task.step): self._thread.submit(self._make, task, task.step) for task in tasks
        }

    def batches(self, tasks: Sequence[TaskState]) -> list[list[Tensors]]:
        """Return the batches of each task's next step.

        Raises:
            Exception: any error from making them.
        """
        # After a changed draw or a resume, the prefetched batches are of other steps.
        if self._pending.keys() != {(task.name, task.step) for task in tasks}:
            self.begin(tasks)
        return [self._pending[task.name, task.step].result() for task in tasks]

    def _make(self, task: TaskState, step: int) -> list[Tensors]:
        return [prepared(batch, self._device, self._backbone) for batch in task.batches(step)]
