"""The values of a logged step: mean loss, rates, remaining time; from a GPU they arrive one step later."""

from __future__ import annotations

import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from palm.train.device_transfer import fetched
from palm.train.events import Event, Logged
from palm.train.loop import Step, Training

DECAY = 0.98
"""Decay of the running mean of a task's losses; the last 50 steps have about two thirds of the weight."""


class Meter:
    """A callback that returns the values of every `every`-th step as events.

    Running means are sums on the device. From a GPU, the values of a step are read with the next event or
    when the run is settled, so no step waits for them.

    Args:
        training: the run; its checkpoints contain the running means.
        every: interval in global steps; 0 or less: never.
        seconds: returns the time since the run began, including earlier parts of a resumed run.
    """

    def __init__(self, training: Training, every: int, seconds: Callable[[], float]) -> None:
        self.training = training
        self.every = every
        self.seconds = seconds
        self._sums: dict[str, tuple[Tensor, float]] = {}
        self._last = self._first = (seconds(), training.step, training.rows, training.tokens)
        self._pending: Callable[[], list[Logged]] | None = None
        training.attach("meter", self)

    def __call__(self, event: Event) -> list[Logged]:
        lines = [] if isinstance(event, Logged) else self.due()
        if not isinstance(event, Step):
            return lines
        for part in event.parts:
            total, weight = self._sums.get(part.task.name, (part.loss.new_zeros(()), 0.0))
            total = torch.add(part.loss, total.to(part.loss.device), alpha=DECAY)
            self._sums[part.task.name] = total, weight * DECAY + 1
        if self.every > 0 and event.number % self.every == 0:
            self._pending = self._logged(event)
        return lines if event.grad_norm.is_cuda else self.due()

    def due(self) -> list[Logged]:
        """Return the events of a logged step that have not been returned yet."""
        read = self._pending
        self._pending = None
        return [] if read is None else read()

    def _logged(self, step: Step) -> Callable[[], list[Logged]]:
        """Start fetching the values of a step; return a function that returns an event per drawn task."""
        sums = [self._sums[part.task.name] for part in step.parts]
        means = [total / weight for total, weight in sums]
        losses = [part.loss for part in step.parts]
        # One transfer for all values of a step, because every read waits for a GPU.
        skips = step.grad_norm.new_zeros(()) if self.training.skips is None else self.training.skips
        values = fetched({"values": torch.stack([skips, step.grad_norm, *losses, *means])})
        now = self.seconds()
        training = self.training
        since, number, rows, tokens = self._last
        self._last = (now, training.step, training.rows, training.tokens)
        pace = max(now - since, 1e-9)
        # The average over this process's whole run, since evaluation and saving will also take their time.
        per_step = (now - self._first[0]) / (training.step - self._first[1])
        memory = memory_bytes(training.device)
        unread = [
            Logged(
                step.number,
                task.name,
                task_step=task.step,
                step_of_epoch=(task.step - 1) % task.steps_per_epoch + 1,
                steps_per_epoch=task.steps_per_epoch,
                epoch=task.epoch,
                learning_rate=step.learning_rate,
                rows=training.rows,
                tokens=training.tokens,
                seconds=round(now, 3),
                remaining=max(training.total_steps - training.step, 0) * per_step,
                steps_per_second=(training.step - number) / pace,
                rows_per_second=(training.rows - rows) / pace,
                tokens_per_second=(training.tokens - tokens) / pace,
                memory_bytes=memory,
            )
            for task in (part.task for part in step.parts)
        ]

        def read() -> list[Logged]:
            skipped, norm, *numbers = values()["values"].tolist()
            if skipped:
                training.settle()  # raises the error that names the first skipped step
            found = zip(unread, numbers[: len(unread)], numbers[len(unread) :], strict=True)
            return [replace(line, loss=loss, mean_loss=mean, grad_norm=norm) for line, loss, mean in found]

        return read

    def means(self) -> dict[str, float]:
        """Return the running mean loss of every task that had a step."""
        return {name: total.item() / weight for name, (total, weight) in self._sums.items()}

    def state_dict(self) -> dict[str, Any]:
        """Return the running means, JSON-ready."""
        return {name: [total.item(), weight] for name, (total, weight) in self._sums.items()}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restore the running means that `state_dict` returned."""
        # The round trip from float32 to double and back is exact, so the means continue bit for bit.
        self._sums = {name: (torch.tensor(total), weight) for name, (total, weight) in state.items()}


def memory_bytes(device: torch.device) -> int | None:
    """Return the peak memory of tensors on a GPU, or of the process on a CPU; None if unknown."""
    if device.type == "cuda":
        return int(torch.cuda.max_memory_allocated(device))
    status = Path("/proc/self/status")
    if status.is_file():
        # Not `ru_maxrss`, which includes the peak of the parent process.
        line = next(line for line in status.read_text("utf-8").splitlines() if line.startswith("VmHWM"))
        return 1024 * int(line.split()[1])
    try:
        import resource  # not on Windows
    except ImportError:
        return None
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return int(peak if sys.platform == "darwin" else peak * 1024)  # macOS counts bytes, Linux KiB
