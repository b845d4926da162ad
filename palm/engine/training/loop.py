"""The training loop: one optimizer step after the other, each on the next batches of one or several tasks."""

from __future__ import annotations

import gc
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from functools import partial
from typing import Any, Protocol

import numpy as np
import torch
from torch import Tensor

from palm.core.errors import TrainingError
from palm.core.numerics.rng import generator
from palm.core.signals import StopRequest
from palm.core.tensor_specs import Tensors
from palm.distributed.failures import report_missing_ranks
from palm.distributed.group import num_ranks, rank
from palm.distributed.replica import Replica
from palm.engine.training.device_transfer import placed
from palm.engine.training.ema import ExponentialMovingAverage
from palm.engine.training.events import Event
from palm.engine.training.model import MultiTaskModel
from palm.engine.training.nan_guard import Attempt, NanGuard, NotFinite, can_read_late
from palm.engine.training.out_of_memory import out_of_memory
from palm.engine.training.prefetch import Prefetcher, prefetches
from palm.engine.training.recipe import Recipe
from palm.engine.training.task import Task
from palm.engine.training.train_step import TaskBatches, train_step

Drawn = Sequence[tuple[Task, Sequence[Tensors]]]
"""The tasks of a step, each with its batches, on the CPU."""

COLLECTED_FROM = 2**20
"""Parameters of a model from which on the memory of an earlier run is worth a collection, some 0.1 s."""


class Stateful(Protocol):
    """Something with a JSON-ready state."""

    def state_dict(self) -> dict[str, Any]: ...
    def load_state_dict(self, state: dict[str, Any]) -> None: ...


@dataclass(frozen=True)
class TaskStep:
    """The part of one task in an optimizer step.

    Args:
        task: `task.step` counts its own steps, this one included.
        loss: the detached loss of its batch, before the update, a scalar tensor.
        finished: whether the task reached its expected steps with this one.
        batches: of this rank, as they were before they went to the device.
    """

    task: Task
    loss: Tensor
    finished: bool
    batches: Sequence[Tensors]


@dataclass(frozen=True)
class Step(Event):
    """One optimizer step.

    Args:
        number: global step, from 1.
        parts: of the tasks that were drawn.
        learning_rate: the rate of the update.
        grad_norm: the norm of the gradient before clipping, a scalar tensor.
    """

    number: int
    parts: Sequence[TaskStep]
    learning_rate: float
    grad_norm: Tensor

    @property
    def task(self) -> Task:
        """The task that was drawn, the first of several."""
        return self.parts[0].task

    @property
    def loss(self) -> Tensor:
        """The loss of that task."""
        return self.parts[0].loss

    def part_of(self, task: Task) -> TaskStep | None:
        """Return the part of a task; None where it was not drawn."""
        return next((part for part in self.parts if part.task is task), None)


class Training:
    """A run in progress: a model, its optimizer, and how far its tasks have come.

    Args:
        recipe: what the run is made of.
        model: its backbone with all heads.
        replica: the model on its way to several devices.
        optimizer: over the model's parameters.
        ema: averages of the parameters, updated after every step.

    Attributes:
        tasks: those of the recipe; they count their own steps.
        step: global steps so far.
        rows: of the batches so far, of all tasks and ranks.
        tokens: the same, padding not counted.
        plan: its steps, as planned at first.
        primary_tasks: the tasks that are drawn; the others share the rows of one of them.
        total_steps: global steps until every target has had its expected ones, as planned at first: with one
            task a step, the expected steps of all tasks together.
        stop_request: whether a signal asks this process to end; None where nobody listens.
        when_settled: called when the last step has been read, before anybody looks at the run.
    """

    def __init__(
        self,
        recipe: Recipe,
        *,
        model: MultiTaskModel,
        replica: Replica,
        optimizer: torch.optim.Optimizer,
        ema: ExponentialMovingAverage | None = None,
    ) -> None:
        if sum(each.numel() for each in model.parameters()) >= COLLECTED_FROM:
            gc.collect()  # an earlier run's weights and moments wait in reference cycles: twice the memory
        self.recipe = recipe
        self.tasks = list(recipe.tasks)
        self.model = model
        self.replica = replica
        self.optimizer = optimizer
        self.ema = ema
        self.plan = recipe.plan
        self.total_steps = self.plan.total_steps
        self.primary_tasks = [task for task in self.tasks if task.share_rows_with is None]
        self.base_rates = [group["lr"] for group in optimizer.param_groups]
        self.step = 0
        self.rows = 0
        self.tokens = 0
        self._counts = (0, 0)  # rows and tokens of the step that is being made, of all ranks
        self.stop_request: StopRequest | None = None
        self.when_settled: Callable[[], object] = lambda: None
        self._ranks_stop = False
        self._guard = NanGuard(optimizer, late=can_read_late(recipe, optimizer))
        self._prefetcher = Prefetcher(recipe.device, model.backbone) if prefetches(recipe.device) else None
        self._attached: dict[str, Stateful] = {}
        self._unclaimed: dict[str, Any] = {}

    def attach(self, name: str, thing: Stateful) -> None:
        """Register an object whose state is saved in checkpoints; one that was loaded is restored at once."""
        self._attached[name] = thing
        if name in self._unclaimed:
            thing.load_state_dict(self._unclaimed.pop(name))

    def attached(self, name: str) -> Stateful | None:
        """Return the object that is registered under a name, if there is one."""
        return self._attached.get(name)

    def steps(self) -> Iterator[Step]:
        """Train until every target has had its steps, or the run its `max_steps`; yield after each step.

        Raises:
            TrainingError: a loss is not a number; names the task and the step.
        """
        while not self.is_over:
            yield self.next_step()
        self.settle()

    @property
    def is_over(self) -> bool:
        """True if every target has had its steps, or the run as many as it may have."""
        return self.is_cut or all(task.done for task in self.tasks if task.is_target)

    @property
    def is_cut(self) -> bool:
        """True if the run has had its `max_steps`."""
        return self.recipe.max_steps is not None and self.step >= self.recipe.max_steps

    def next_step(self) -> Step:
        """Draw a task, or several, and train them on their next batches."""
        tasks = self._drawn()
        if self._prefetcher is None:
            return self.step_on([(task, task.batches(task.step)) for task in tasks])
        step = self.step_on(list(zip(tasks, self._prefetcher.batches(tasks), strict=True)))
        if not self.is_over:
            self._prefetcher.begin(self._drawn())
        return step

    def _drawn(self) -> list[Task]:
        """Draw the tasks of the next step, as a function of its number and of how far all are."""
        progress = [task.progress() for task in self.primary_tasks]
        names = self.plan.drawn(self.recipe.seed, self.step, progress)
        return [task for task in self.tasks if task.name in names]

    def step_on(self, drawn: Drawn) -> Step:
        """Train tasks, in one step, on batches that are not necessarily their next ones.

        Where their learning-rate factors differ, the step has the mean.
        """
        rate = self._set_rates(drawn)
        self._set_modes(drawn)
        self._set_seed()
        names = [task.name for task, _ in drawn]
        counts = {task.name: task.step for task in self.tasks}
        # As before the step: a GPU may refuse it when the next one has been counted already.
        attempt = Attempt(names, self.step, self.rows, self.tokens, counts)
        try:
            with report_missing_ranks(f"at global step {self.step + 1}"):
                losses, norm = train_step(
                    self.replica,
                    self.task_batches(drawn),
                    self.optimizer,
                    partial(self._guard.update, attempt),
                    clipping=self.recipe.optimizer,
                    balance=self.recipe.balance if len(drawn) > 1 else None,
                    draws=generator(self.recipe.seed, "balance", self.step),
                )
        except NotFinite as error:
            raise self._refused(error) from None
        except torch.cuda.OutOfMemoryError as error:
            where = f"{', '.join(map(repr, names))} at global step {self.step + 1}"
            given = [batch for _, own in drawn for batch in own]
            raise out_of_memory(where, given, self.optimizer, error) from error
        if self.ema is not None:
            self.ema.update(self._guard.refuses)
        self.rows += self._counts[0]
        self.tokens += self._counts[1]
        self.step += 1
        parts = []
        for (task, batches), loss in zip(drawn, losses, strict=True):
            task.step += 1
            # Exactly at its plan, so that a target that goes on, until the last is through, finishes once.
            finished = task.step == task.expected_steps and task.stopped_at is None
            parts.append(TaskStep(task, loss, finished, batches))
        return Step(self.step, parts, rate, norm)

    def _set_rates(self, drawn: Drawn) -> float:
        """Set the learning rates of the step, and return the largest."""
        factors = [task.learning_rate_factor for task, _ in drawn]
        factor = self.recipe.schedule(self.step) * (sum(factors) / len(factors))
        # From the base rates, not from those of the last step: a step's rate depends on its number alone.
        for group, rate in zip(self.optimizer.param_groups, self.base_rates, strict=True):
            group["lr"] = rate * factor
        largest: float = max(group["lr"] for group in self.optimizer.param_groups)
        return largest

    def _set_modes(self, drawn: Drawn) -> None:
        """Put into training mode what takes part in the step; the other heads rest."""
        for module in (self.model.backbone, self.model.private, *(task.head for task, _ in drawn)):
            if not all(part.training for part in module.modules()):  # setting it takes three times as long
                module.train()

    def _set_seed(self) -> None:
        """Make dropout a function of position: a resumed run repeats it, and nothing else disturbs it."""
        place = (self.step, rank()) if rank() else (self.step,)
        seed = int(generator(self.recipe.seed, "dropout", *place).integers(2**63))
        # `torch.manual_seed` takes 0.5 ms for devices that are absent.
        torch.default_generator.manual_seed(seed)
        if self.recipe.device.type == "cuda":
            torch.cuda.manual_seed(seed)

    def task_batches(self, drawn: Drawn) -> list[TaskBatches]:
        """Move batches to the device, each with the factor of its loss among those of all ranks."""
        counts = [[task.head.num_terms(batch) for batch in own] for task, own in drawn]
        # Rows that tasks share are encoded once, and count once.
        encoded = [batch for task, own in drawn if task.share_rows_with is None for batch in own]
        rows = sum(len(next(iter(batch.values()))) for batch in encoded)
        masks = [batch[name] for batch in encoded for name in batch if name.startswith("input_mask")]
        tokens = sum(int(mask.sum()) for mask in masks)
        # A signal reaches ranks in different steps; along with the counts they agree on one, at no cost.
        here = [rows, tokens, int(self._is_asked_to_stop())]
        factors, (rows, tokens, stops) = self.replica.loss_factors(counts, here)
        self._counts = (rows, tokens)
        # All ranks end after the same step, or those that go on would wait for ever.
        self._ranks_stop = stops > 0
        made = []
        for (task, own), of_task in zip(drawn, factors, strict=True):
            on_device = [placed(batch, self.recipe.device, self.model.backbone) for batch in own]
            parts = list(zip(on_device, of_task, strict=True))
            made.append(TaskBatches(task.name, parts, task.loss_weight))
        return made

    def settle(self) -> None:
        """Read the last step's loss and norm, if that is still to be done; a GPU is waited for.

        Raises:
            TrainingError: one is not finite; the run is where it was before that step.
        """
        try:
            self._guard.read()
        except NotFinite as error:
            raise self._refused(error) from None
        self.when_settled()

    def _refused(self, error: NotFinite) -> TrainingError:
        """Go back to before a step that was not made, and describe the error."""
        refused = error.attempt
        if self.ema is not None:
            self.ema.num_updates -= self.step - refused.step
        self.step = refused.step
        self.rows = refused.rows
        self.tokens = refused.tokens
        for task in self.tasks:
            task.step = refused.task_steps[task.name]
        first, *others = refused.tasks
        place = f"global step {self.step + 1}"
        if not others:
            error_at = f"task {first!r}: {error} at its step {refused.task_steps[first] + 1} ({place})"
        else:
            error_at = f"{error} at {place}"
        return TrainingError(
            f"{error_at}; nothing was updated. Try a lower learning_rate, warmup_proportion above 0, or a "
            "smaller grad_clip, and look at the rows of this batch"
        )

    @property
    def is_stopping(self) -> bool:
        """True on all ranks if a signal has asked one of them to end after this step."""
        return self._is_asked_to_stop() if num_ranks() == 1 else self._ranks_stop

    def _is_asked_to_stop(self) -> bool:
        return self.stop_request is not None and self.stop_request.number is not None

    def record_score(self, task: Task, score: float) -> None:
        """Add a dev score, for mixing strategies that follow scores.

        Args:
            task: whose score it is.
            score: from 0 to 1, the higher the better.
        """
        task.scores.append(score)
        if self.recipe.mixing.follows_scores:
            self._plan_rest()

    def _plan_rest(self) -> None:
        """Plan the steps that are left by the present scores; a target that had its steps keeps their number.

        Each task gets one, and a part of the rest by its weight, rounded so that the run's last step stays
        where the schedule ends.
        """
        unfinished = np.array([task.step < task.expected_steps for task in self.primary_tasks])
        weights = unfinished * self.recipe.mixing.weights([task.progress() for task in self.primary_tasks])
        left = max(self.total_steps - self.step, 1)
        # One step of each is set apart, so that a small weight plans no task away.
        rest = max(left * self.plan.count - int(unfinished.sum()), 0)
        # Rounded sums, not rounded parts: their differences add up to the rest exactly.
        bounds = np.round(rest * np.cumsum(weights) / (weights.sum() or 1)).astype(int)
        names = [task.name for task in self.primary_tasks]
        more = dict(zip(names, np.diff(bounds, prepend=0).tolist(), strict=True))
        for task in self.tasks:
            if task.step < task.expected_steps:
                task.expected_steps = task.step + min(1 + more[task.share_rows_with or task.name], left)

    def averaged(self) -> AbstractContextManager[Any]:
        """Give the model its averaged weights within the context, where the run keeps averages."""
        self.settle()
        return nullcontext() if self.ema is None else self.ema.applied()

    def state_dict(self) -> dict[str, Any]:
        """Return how far the run has come; weights and optimizer have states of their own."""
        self.settle()
        return {
            "step": self.step,
            "rows": self.rows,
            "tokens": self.tokens,
            "task_steps": {task.name: task.step for task in self.tasks},
            "expected_steps": {task.name: task.expected_steps for task in self.tasks},
            "scores": {task.name: task.scores for task in self.tasks},
            "stopped_at": {task.name: task.stopped_at for task in self.tasks},
            **({} if self.recipe.balance is None else {"balance": self.recipe.balance.state_dict()}),
            "attached": {name: thing.state_dict() for name, thing in self._attached.items()},
        }

    def load_state_dict(
        self, state: dict[str, Any], steps_per_saved: Mapping[str, float] | None = None
    ) -> None:
        """Resume from where `state_dict` was taken.

        Args:
            state: its result.
            steps_per_saved: task -> how many of its steps now have the rows of one step then; 1 where
                absent. Where it is another number, the task resumes at the same part of its plan.
        """
        factors = {task.name: 1.0 for task in self.tasks} | dict(steps_per_saved or {})
        for task in self.tasks:
            factor = factors[task.name]
            expected = state["expected_steps"][task.name]
            task.scores = list(state["scores"][task.name])
            task.stopped_at = state["stopped_at"][task.name]
            if self.recipe.mixing.follows_scores:
                task.expected_steps = round(expected * factor)
            # On other devices a plan may be rounded otherwise: the part of it that was done has to agree.
            if factor != 1 and expected:
                factor = task.expected_steps / expected
            task.step = round(state["task_steps"][task.name] * factor)
        had = sum(state["task_steps"].values())
        has = sum(task.step for task in self.tasks)
        self.step = state["step"] if had == has else round(state["step"] * has / had)
        if self.recipe.balance is not None:
            self.recipe.balance.load_state_dict(state["balance"])
        self.rows = state["rows"]
        self.tokens = state["tokens"]
        # What is attached later takes its state from here, so that it may be made before or after loading.
        self._unclaimed = dict(state["attached"])
        for name, thing in list(self._attached.items()):
            self.attach(name, thing)
