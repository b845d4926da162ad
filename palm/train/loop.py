"""The training loop: a sequence of optimizer steps, each on the next batches of one or several tasks."""

from __future__ import annotations

import gc
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, Protocol

import torch
from torch import Tensor

from palm.backbone.base import Backbone
from palm.backbone.packing import POSITIONS, layout_of
from palm.config.run import RunConfig
from palm.core.group import rank, report_missing_ranks, world_size
from palm.core.layers import generator
from palm.core.process import StopRequest
from palm.core.saved import Tensors, as_declared
from palm.mixing import Mixing
from palm.mixing.balance import Balance
from palm.optimizer import Optimizer, ParameterGroups
from palm.train.callbacks import Event
from palm.train.model import MultiTaskModel
from palm.train.task import StepPlan, Task, TaskState
from palm.train.train_step import (
    ExponentialMovingAverage,
    NanGuard,
    Replica,
    TaskBatches,
    decides_on_device,
    loss_factors,
    out_of_memory,
    train_step,
)


def placed(batch: Tensors, device: torch.device, backbone: Backbone) -> Tensors:
    """Move a batch to a device; for a GPU, add the layout of its tokens, so the host does not wait for it.

    Args:
        batch: the batch, on the CPU.
        device: the target device.
        backbone: the encoder of the batch; only packed encoders get the layout.
    """
    if device.type != "cuda":
        return {name: value.to(device) for name, value in batch.items()}
    mask = as_declared(batch, backbone.inputs_attr).get("input_mask") if backbone.is_packed else None
    if mask is not None and POSITIONS not in batch:
        batch = {**batch, **layout_of(mask)}
    # Copies to a GPU are asynchronous only from pinned memory.
    return {name: value.pin_memory().to(device, non_blocking=True) for name, value in batch.items()}


def fetched(tensors: Tensors) -> Callable[[], Tensors]:
    """Start copying tensors to the host.

    Returns:
        A function that returns them; it waits for the copies, but not for work that was queued later.
    """
    if not any(value.is_cuda for value in tensors.values()):
        return lambda: tensors
    host = {name: torch.empty(t.shape, dtype=t.dtype, pin_memory=True) for name, t in tensors.items()}
    for name, value in tensors.items():
        host[name].copy_(value, non_blocking=True)
    copied = torch.cuda.Event()  # type: ignore[no-untyped-call]
    copied.record()

    def read() -> Tensors:
        copied.synchronize()
        return host

    return read


Drawn = Sequence[tuple[TaskState, Sequence[Tensors]]]
"""The tasks of a step, each with its batches, on the CPU."""

COLLECT_ABOVE = 2**20
"""Size of a model, in parameters, from which a garbage collection (about 0.1 s) is worth its time."""


class Stateful(Protocol):
    """Something with a JSON-ready state."""

    def state_dict(self) -> dict[str, Any]: ...
    def load_state_dict(self, state: dict[str, Any]) -> None: ...


@dataclass(frozen=True)
class TaskStep:
    """One task's part of an optimizer step.

    Args:
        task: the task; `task.step` includes this step.
        loss: the detached loss of its batch before the update, a scalar tensor.
        finished: True if the task reached its expected steps with this one.
        batches: the batches of this rank, before they were moved to the device.
    """

    task: TaskState
    loss: Tensor
    finished: bool
    batches: Sequence[Tensors]


@dataclass(frozen=True)
class Step(Event):
    """One optimizer step.

    Args:
        number: global step, from 1.
        parts: the parts of the drawn tasks.
        learning_rate: the rate of the update.
        grad_norm: the norm of the gradient before clipping, a scalar tensor.
    """

    number: int
    parts: Sequence[TaskStep]
    learning_rate: float
    grad_norm: Tensor

    @property
    def task(self) -> TaskState:
        """The drawn task, or the first of several."""
        return self.parts[0].task

    @property
    def loss(self) -> Tensor:
        """The loss of that task."""
        return self.parts[0].loss

    def part_of(self, task: TaskState) -> TaskStep | None:
        """Return the part of a task; None if it was not drawn."""
        return next((part for part in self.parts if part.task is task), None)


@dataclass
class Components:
    """The components of a run.

    Args:
        backbone: the shared encoder.
        optimizer: the settings of the optimizer.
        tasks: the tasks.
        groups: frozen parts and learning rates of parts of the model.
        mixing: chooses the tasks of a step.
        balance: weights the tasks of a step against each other; None: their losses are summed.
    """

    backbone: Backbone
    optimizer: Optimizer
    tasks: list[Task]
    groups: ParameterGroups
    mixing: Mixing
    balance: Balance | None = None


class Training:
    """A run in progress: a model, its optimizer, and the progress of its tasks.

    Args:
        config: the configuration of the run.
        parts: its components.
        tasks: its tasks, with planned steps; they count their own steps.
        schedule: global step, from 0 -> factor of the learning rate.
        device: the device that computes.
        model: its backbone with all heads.
        optimizer: the optimizer of the model's parameters.
        ema: averages of the parameters, updated after every step.

    Attributes:
        step: global steps so far.
        replica: the model, wrapped for several devices.
        rows: rows of all batches so far, of all tasks and ranks.
        tokens: tokens of these rows, without padding.
        plan: its steps, as planned at the start.
        primary_tasks: the tasks that are drawn; the others share the rows of one of them.
        total_steps: global steps until every target has had its expected steps, as planned at the start; with
            one task per step, the sum of all expected steps.
        warnings: what palm has warned of so far.
        resumed_from: the checkpoint that was loaded; None if there was none.
        stop_request: holds a signal that asks this process to stop; None if signals are not handled.
    """

    def __init__(
        self,
        config: RunConfig,
        *,
        parts: Components,
        tasks: Sequence[TaskState],
        schedule: Callable[[int], float],
        device: torch.device,
        model: MultiTaskModel,
        optimizer: torch.optim.Optimizer,
        ema: ExponentialMovingAverage | None = None,
    ) -> None:
        if sum(each.numel() for each in model.parameters()) >= COLLECT_ABOVE:
            gc.collect()  # reference cycles may still hold the weights and moments of an earlier run
        self.config = config
        self.parts = parts
        self.tasks = list(tasks)
        self.schedule = schedule
        self.device = device
        self.model = model
        self.replica = Replica(model)
        self.optimizer = optimizer
        self.ema = ema
        self.plan = StepPlan.of(tasks, parts.mixing, config.settings)
        self.total_steps = self.plan.total_steps
        self.primary_tasks = [task for task in self.tasks if task.task.share_rows_with is None]
        self.base_rates = [group["lr"] for group in optimizer.param_groups]
        self.step = 0
        self.rows = 0
        self.tokens = 0
        self._counts = (0, 0)  # rows and tokens of the current step, on all ranks
        self.resumed_from: Path | None = None
        self.stop_request: StopRequest | None = None
        self.warnings: list[str] = []
        self._seed = config.settings.random_seed
        self._ranks_stop = False
        self._guard = NanGuard(optimizer, decides_on_device(parts.balance, device, optimizer))
        self._attached: dict[str, Stateful] = {}
        self._unclaimed: dict[str, Any] = {}

    def attach(self, name: str, thing: Stateful) -> None:
        """Register an object whose state is part of checkpoints; a state already loaded is restored now."""
        self._attached[name] = thing
        if name in self._unclaimed:
            thing.load_state_dict(self._unclaimed.pop(name))

    def attached(self, name: str) -> Stateful | None:
        """Return the object that is registered under a name, or None."""
        return self._attached.get(name)

    def steps(self) -> Iterator[Step]:
        """Train until all targets are done or `max_steps` is reached; yield after each step.

        Raises:
            TrainingError: a loss is NaN or infinite; names the task and the step.
        """
        while not self.is_over:
            yield self.next_step()
        self.settle()

    @property
    def is_over(self) -> bool:
        """True if all targets are done or `max_steps` is reached."""
        return self.reached_max_steps or all(task.done for task in self.tasks if task.is_target)

    @property
    def reached_max_steps(self) -> bool:
        """True if the run has reached its `max_steps`."""
        longest = self.config.settings.max_steps
        return longest is not None and self.step >= longest

    def next_step(self) -> Step:
        """Draw one or several tasks, and train them on their next batches."""
        # A function of the step's number and of all tasks' progress.
        progress = [task.progress() for task in self.primary_tasks]
        stopped = [task.name for task in self.tasks if task.stopped_at is not None]
        names = self.plan.drawn(self._seed, self.step, progress, stopped)
        tasks = (task for task in self.tasks if task.name in names)
        return self.step_on([(task, task.batches(task.step)) for task in tasks])

    def step_on(self, drawn: Drawn) -> Step:
        """Train tasks in one step on given batches, which need not be their next ones.

        If their learning-rate factors differ, the step uses the mean.
        """
        rate = self._set_rates(drawn)
        self._set_modes(drawn)
        self._set_seed()
        place = self._place(drawn)
        try:
            with report_missing_ranks(f"at global step {self.step + 1}"):
                losses, norm = train_step(
                    self.replica,
                    self.task_batches(drawn),
                    self.optimizer,
                    partial(self._guard.update, place),
                    clipping=self.parts.optimizer,
                    balance=self.parts.balance if len(drawn) > 1 else None,
                )
        except torch.cuda.OutOfMemoryError as error:
            given = [batch for _, own in drawn for batch in own]
            raise out_of_memory(place, given, error) from error
        if self.ema is not None:
            self.ema.update(self._guard.skips)
        self.rows += self._counts[0]
        self.tokens += self._counts[1]
        self.step += 1
        parts = []
        for (task, batches), loss in zip(drawn, losses, strict=True):
            task.step += 1
            # `==`, so a target finishes only once although it is drawn until the last target is finished.
            finished = task.step == task.expected_steps and task.stopped_at is None
            parts.append(TaskStep(task, loss, finished, batches))
        return Step(self.step, parts, rate, norm)

    def _set_rates(self, drawn: Drawn) -> float:
        """Set the learning rates of the step, and return the largest."""
        factors = [task.task.learning_rate_factor for task, _ in drawn]
        factor = self.schedule(self.step) * (sum(factors) / len(factors))
        # From the base rates, so the rate of a step depends only on its number and its tasks.
        for group, rate in zip(self.optimizer.param_groups, self.base_rates, strict=True):
            group["lr"] = rate * factor
        largest: float = max(group["lr"] for group in self.optimizer.param_groups)
        return largest

    def _set_modes(self, drawn: Drawn) -> None:
        """Put the modules that take part in the step into training mode."""
        modules: list[torch.nn.Module] = [self.model.backbone, *(task.head for task, _ in drawn)]
        for module in modules:
            if not all(part.training for part in module.modules()):  # checking takes a third of the time
                module.train()

    def _set_seed(self) -> None:
        """Seed dropout by position, so a resumed run repeats it and nothing else affects it."""
        place = (self.step, rank()) if rank() else (self.step,)
        seed = int(generator(self._seed, "dropout", *place).integers(2**63))
        # `torch.manual_seed` would spend 0.5 ms on devices that do not exist.
        torch.default_generator.manual_seed(seed)
        if self.device.type == "cuda":
            torch.cuda.manual_seed(seed)

    def task_batches(self, drawn: Drawn) -> list[TaskBatches]:
        """Move batches to the device, each with the factor of its loss in the mean over all ranks."""
        counts = [[task.head.num_terms(batch) for batch in own] for task, own in drawn]
        # Rows that tasks share are encoded once and counted once.
        by_rows = {task.task.share_rows_with or task.name: own for task, own in drawn}
        encoded = [batch for own in by_rows.values() for batch in own]
        rows = sum(len(next(iter(batch.values()))) for batch in encoded)
        masks = [batch[name] for batch in encoded for name in batch if name.startswith("input_mask")]
        tokens = sum(int(mask.sum()) for mask in masks)
        # A signal may reach ranks in different steps; they agree on one together with the counts, at no cost.
        here = [rows, tokens, int(self._is_asked_to_stop())]
        factors, (rows, tokens, stops) = loss_factors(counts, here)
        self._counts = (rows, tokens)
        # All ranks must stop after the same step, or the others would wait forever.
        self._ranks_stop = stops > 0
        made = []
        for (task, own), of_task in zip(drawn, factors, strict=True):
            on_device = [placed(batch, self.device, self.model.backbone) for batch in own]
            parts = list(zip(on_device, of_task, strict=True))
            made.append(TaskBatches(task.name, parts, task.task.loss_weight))
        return made

    def _place(self, drawn: Drawn) -> str:
        """Describe a step for messages."""
        if len(drawn) > 1:
            return f"tasks {', '.join(task.name for task, _ in drawn)} at global step {self.step + 1}"
        ((task, _),) = drawn
        return f"task {task.name!r} at its step {task.step + 1} (global step {self.step + 1})"

    def settle(self) -> None:
        """Check that all steps so far were finite; this waits for a GPU.

        Raises:
            TrainingError: one of them was not; neither that step nor any later one changed anything.
        """
        self._guard.read()

    @property
    def is_stopping(self) -> bool:
        """True on all ranks if a signal has asked one of them to stop after this step."""
        return self._is_asked_to_stop() if world_size() == 1 else self._ranks_stop

    def _is_asked_to_stop(self) -> bool:
        return self.stop_request is not None and self.stop_request.number is not None

    def averaged(self) -> AbstractContextManager[Any]:
        """Use the averaged weights within the context, if the run keeps averages."""
        self.settle()
        return nullcontext() if self.ema is None else self.ema.applied()

    def state_dict(self) -> dict[str, Any]:
        """Return the progress of the run, JSON-ready; weights and optimizer are saved separately."""
        self.settle()
        return {
            "step": self.step,
            "rows": self.rows,
            "tokens": self.tokens,
            "task_steps": {task.name: task.step for task in self.tasks},
            "expected_steps": {task.name: task.expected_steps for task in self.tasks},
            "stopped_at": {task.name: task.stopped_at for task in self.tasks},
            **({} if self.parts.balance is None else {"balance": self.parts.balance.state_dict()}),
            **({} if self.ema is None else {"averaged_steps": self.ema.num_updates}),
            "attached": {name: thing.state_dict() for name, thing in self._attached.items()},
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restore the progress that `state_dict` returned."""
        for task in self.tasks:
            task.stopped_at = state["stopped_at"][task.name]
            task.step = state["task_steps"][task.name]
        self.step = state["step"]
        if self.parts.balance is not None:
            self.parts.balance.load_state_dict(state["balance"])
        self.rows = state["rows"]
        self.tokens = state["tokens"]
        # Objects that are attached after loading get their state from here.
        self._unclaimed = dict(state["attached"])
        for name, thing in list(self._attached.items()):
            self.attach(name, thing)
