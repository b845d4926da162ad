"""Transfer between tasks: cosines of gradients, and the effect of a step on one task on all losses.

The measurement does not change the training in any bit.
"""

from __future__ import annotations

import math
import time
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import Literal

import torch
from torch import Tensor

from palm.core.errors import ConfigError
from palm.core.logging import logger
from palm.core.tensor_specs import Tensors
from palm.parallel.shards import local_shard
from palm.reader.cache import training_rows
from palm.train.device_transfer import placed
from palm.train.events import Event, Transferred
from palm.train.loop import Step, Training
from palm.train.model import restored_modes
from palm.train.stream import TaskStream
from palm.train.task import PREDICTION_ROWS, Task
from palm.train.train_step import TaskBatches, gramian, pop_gradients, sum_of_losses

MIN_ROWS = 64
"""Minimum number of rows per task in a comparison; gradients of 16 rows are mostly noise."""

LOOK_AHEAD = 0.01
"""Maximum share by which a step on a task may lower the task's own loss, if the loss were linear."""

MAX_SHARE = 0.02
"""Maximum share of the training time that `auto` spends, estimated by the number of passes."""

MIN_COMPARISONS = 5
"""Minimum number of comparisons for a verdict."""

FP32_COST = 4
"""Estimated cost of an fp32 pass, in which comparisons are made, relative to bf16."""


class TransferProbe:
    """An observer that compares all tasks every so many global steps.

    Trial steps use the rows that a task trains on next. Their effect is measured on the dev rows of tasks
    that have some, because training rows are soon memorized.

    Gradients are those of the shared encoder, without dropout, in fp32, averaged over all devices. Memory is
    needed for a copy of the encoder and one gradient of it per task, two for tasks with dev rows.

    Args:
        training: the run.
        every: interval in global steps; 'auto' for one at which comparisons take about 2 % of the time.
        judged: tasks on which the effects are measured; None: all tasks.

    Raises:
        ConfigError: there is only one task, or layers have no fp32 parameters during computation.

    Source: look-ahead affinity: Fifty et al., 2021, arXiv:2109.04617, equation 1, with steps of equal effect.
    """

    def __init__(
        self,
        training: Training,
        every: int | Literal["auto"],
        judged: Collection[str] | None = None,
    ) -> None:
        if len(training.tasks) < 2:
            raise ConfigError("transfer_every_n_steps compares tasks, and there is only one; leave it out")
        if training.replica.gathers_in_bf16:
            # Rounding of bf16 parameters hides most of a step that lowers a loss by 1 %.
            raise ConfigError(
                "transfer_every_n_steps compares tasks in fp32, but with parallel: fsdp and precision: "
                "bf16 layers have no fp32 weights; set parallel: ddp or precision: fp32, or leave it out"
            )
        self.training = training
        self.judged = [task.name for task in training.tasks if judged is None or task.name in judged]
        streams = {task.name: dev_stream(task) for task in training.tasks}
        self.dev = {name: stream for name, stream in streams.items() if stream is not None}
        self.every = automatic_period(training, self.dev) if every == "auto" else every

    @classmethod
    def wanted(cls, training: Training, every: int | Literal["auto"]) -> list[TransferProbe]:
        """Return the probe of a run, if `transfer_every_n_steps` asks for one."""
        return [cls(training, every)] if every == "auto" or every > 0 else []

    def __call__(self, event: Event) -> Transferred | None:
        is_time = isinstance(event, Step) and self.every > 0 and event.number % self.every == 0
        return self.measure() if is_time else None

    def measure(self) -> Transferred:
        """Compare all tasks now."""
        began = time.perf_counter()
        training = self.training
        names = [task.name for task in training.tasks]
        encoder = [
            k for k, (name, _) in enumerate(training.model.named_parameters()) if name.startswith("backbone.")
        ]
        with undisturbed(training):
            rows = self._rows()
            places = {name: place for place, (name, _) in enumerate(rows)}
            judged = {name: places[name] for name in self.judged}
            losses = []
            gradients = []
            for name, parts in rows:
                losses.append(sum_of_losses(training.replica, [TaskBatches(name, parts)]).item())
                gradients.append(pop_gradients(training.replica))
            products = gramian([[own[k] for k in encoder] for own in gradients])
            norms = products.diagonal().sqrt().tolist()
            targets = [(place, *rows[place]) for place in judged.values()]
            changes = [
                self._changes(own, gradients[own], losses, norms, targets) for own in range(len(names))
            ]
        cosine = cosines(products)
        return Transferred(
            training.step,
            cosine=_pairs(
                names, judged, [[row[at] for at in judged.values()] for row in cosine[: len(names)]]
            ),
            look_ahead=_pairs(names, judged, changes),
            took=round(time.perf_counter() - began, 3),
        )

    def _rows(self) -> list[tuple[str, list[tuple[Tensors, float]]]]:
        """Return every task with its next batches, then the tasks with dev rows with batches of those."""
        tasks = self.training.tasks
        own = [(task.name, self._batches(task, task.stream)) for task in tasks]
        of_dev = [(task.name, self._batches(task, self.dev.get(task.name))) for task in tasks]
        return [(name, parts) for name, parts in (*own, *of_dev) if parts]

    def _batches(self, task: Task, stream: TaskStream | None) -> list[tuple[Tensors, float]]:
        """Move the batches of a task's next steps to the device, each with the factor of its loss."""
        if stream is None:
            return []
        training = self.training
        first = task.step * task.gradient_accumulation_steps
        parts = [stream.batch(first + k) for k in range(num_batches(stream))]
        (factors,), _ = training.replica.loss_factors([[task.head.num_terms(part) for part in parts]])
        return [
            (placed(part, training.recipe.device, training.model.backbone), own)
            for part, own in zip(parts, factors, strict=True)
        ]

    def _changes(
        self,
        own: int,
        gradient: Sequence[Tensor | None],
        losses: Sequence[float],
        norms: Sequence[float],
        targets: Sequence[tuple[int, str, Sequence[tuple[Tensors, float]]]],
    ) -> list[float]:
        """Compare a step of the encoder on one task with steps of the same length on each task itself.

        The step lowers the loss of this task or of the other one by `LOOK_AHEAD`, whichever step is shorter:
        with a gradient near 0, a step for that share of the task's own loss would ruin all others.

        Args:
            own: index of the task.
            gradient: gradient of the task.
            losses: losses of all tasks, then of their dev rows.
            norms: norms of the gradients of these losses.
            targets: per measured task, the index of its rows, its name, and the rows.
        """
        model = self.training.model
        moved = [
            (local_shard(parameter.detach()), local_shard(grad))
            for (name, parameter), grad in zip(model.named_parameters(), gradient, strict=True)
            if grad is not None and name.startswith("backbone.")
        ]
        weights = [parameter for parameter, _ in moved]
        before = [weight.clone() for weight in weights]
        found = []
        for k, name, parts in targets:
            lengths = [LOOK_AHEAD * losses[task] / norms[task] if norms[task] else 0.0 for task in (own, k)]
            length = min(lengths)
            torch._foreach_add_(weights, [grad for _, grad in moved], alpha=-length / (norms[own] or 1.0))
            fall = 1 - self._loss(name, parts) / losses[k]
            found.append(fall / (length * norms[k] / losses[k]) if length else math.nan)
            # Restored from a copy, because subtracting would leave rounding errors in the weights.
            torch._foreach_copy_(weights, before)
        with self.training.replica.apart():
            pass
        return found

    def _loss(self, name: str, parts: Sequence[tuple[Tensors, float]]) -> float:
        replica = self.training.replica
        with replica.apart():  # with FSDP, previously gathered weights must not be used again
            pass
        total = 0.0
        with torch.no_grad():
            for batch, factor in parts:
                loss = replica.losses([name], [batch])
                total += replica.mean((loss if factor else loss.nan_to_num()) * factor).item()
        return total


@contextmanager
def undisturbed(training: Training) -> Iterator[None]:
    """Let the model compute in fp32 without dropout within the context, and restore its state afterwards."""
    model = training.model
    parameters = list(training.model.parameters())
    gradients = [p.grad for p in parameters]
    precision = model.precision
    devices = [training.recipe.device] if training.recipe.device.type == "cuda" else []
    for parameter in parameters:
        parameter.grad = None
    model.precision = "fp32"
    try:
        with restored_modes(model), torch.random.fork_rng(devices):
            model.eval()
            yield
    finally:
        model.precision = precision
        for parameter, gradient in zip(parameters, gradients, strict=True):
            parameter.grad = gradient


def num_batches(stream: TaskStream) -> int:
    """Return the number of a task's batches per device in a comparison: at least two, and `MIN_ROWS` rows."""
    per_epoch = stream.steps_per_epoch
    return min(per_epoch, max(2, math.ceil(MIN_ROWS * per_epoch / len(stream.rows))))


def dev_stream(task: Task) -> TaskStream | None:
    """Return batches of a task's dev rows, of the size of its training batches.

    Returns:
        The batches; None if the task has no dev_file, or fewer rows than devices.
    """
    if task.dev_file is None:
        return None
    stream = task.loaded_stream
    rows = training_rows(task.reader, task.dev_file, None)
    size = min(task.batch_size or PREDICTION_ROWS, len(rows) // stream.world_size)
    return replace(stream, rows=rows, batch_size=size, max_tokens_per_batch=None) if size else None


def automatic_period(training: Training, dev: Mapping[str, TaskStream]) -> int:
    """Estimate the interval at which comparisons take about 2 % of the time, by the number of passes."""
    # A backward pass counts as two forward passes. Every batch has both; those on which effects are measured
    # have another forward pass after a step on each task.
    own = {task.name: num_batches(task.stream) for task in training.tasks if task.stream is not None}
    of_dev = {name: num_batches(stream) for name, stream in dev.items()}
    passes = 3 * (sum(own.values()) + sum(of_dev.values()))
    passes += len(training.tasks) * sum((own | of_dev).values())
    cost = FP32_COST if training.model.precision == "bf16" else 1
    parts = max(task.gradient_accumulation_steps for task in training.tasks)
    every = math.ceil(passes * cost / (MAX_SHARE * 3 * training.plan.count * parts))
    total = training.plan.total_steps
    if total < MIN_COMPARISONS * every:
        logger.warning(
            "transfer_every_n_steps: auto compares the tasks every %d steps, so %d times in %d steps, but a "
            "verdict needs %d comparisons; set transfer_every_n_steps to %d to get them at a higher cost",
            every,
            total // every,
            total,
            MIN_COMPARISONS,
            max(1, total // MIN_COMPARISONS),
        )
    return every


def cosines(products: Tensor) -> list[list[float]]:
    """Compute the cosines between vectors from their dot products [n, n]; NaN for zero vectors."""
    norms = products.diagonal().sqrt()
    found: list[list[float]] = (products / norms[:, None] / norms).tolist()
    return found


def _pairs(
    names: Sequence[str], others: Iterable[str], values: Sequence[Sequence[float]]
) -> dict[str, dict[str, float]]:
    return {
        name: {other: round(value, 6) for other, value in zip(others, row, strict=True)}
        for name, row in zip(names, values, strict=True)
    }
