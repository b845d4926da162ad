"""The training loop: tasks are drawn, one update per step; whoever iterates may log, save or stop."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field, replace
from functools import cached_property, partial
from typing import Any, Protocol

import numpy as np
import torch
from torch import Tensor

from palm.core.errors import TrainingError
from palm.core.numerics.rng import generator
from palm.core.numerics.sparse_embedding import sparse_allowed
from palm.core.signals import StopRequest
from palm.core.tensor_specs import Tensors
from palm.distributed import Replica, num_ranks, rank, report_missing_ranks
from palm.engine.training.device_transfer import placed
from palm.engine.training.ema import ExponentialMovingAverage
from palm.engine.training.events import Event
from palm.engine.training.joint_step import Shared, balanced_gradients, sum_of_losses
from palm.engine.training.model import MultiTaskModel
from palm.engine.training.nan_guard import Attempt, Guard, NotFinite, reads_late
from palm.engine.training.prefetch import ReadAhead, reads_ahead
from palm.engine.training.recipe import Recipe, loss_scale
from palm.engine.training.single_step import train_step
from palm.engine.training.task import Task
from palm.optimizer import GradClipType, clip, takes_rows


class Stateful(Protocol):
    """What has a JSON-ready state."""

    def state_dict(self) -> dict[str, Any]: ...
    def load_state_dict(self, state: dict[str, Any]) -> None: ...


@dataclass(frozen=True)
class TaskStep:
    """What one task had of an optimizer step.

    Args:
        task: `task.step` counts its own steps, this one included.
        loss: the detached loss of its batch, before the update, a scalar tensor.
        finished: whether the task reached its expected steps with this one.
        batches: what this rank trained on, before it went to the device.
    """

    task: Task
    loss: Tensor
    finished: bool
    batches: Sequence[Tensors]


@dataclass(frozen=True)
class Step(Event):
    """What one optimizer step did.

    Args:
        number: global step, from 1.
        task: the task that was drawn, the first of several; `task.step` counts its own steps, this one
            included.
        loss: the detached loss of its batch, before the update, a scalar tensor.
        learning_rate: the rate of the update.
        finished: whether the task reached its expected steps with this one.
        batches: what this rank trained on, before it went to the device.
        grad_norm: the norm of the gradient before clipping, a scalar tensor.
        others: the same of the other tasks that were drawn.
    """

    number: int
    task: Task
    loss: Tensor
    learning_rate: float
    finished: bool
    batches: Sequence[Tensors]
    grad_norm: Tensor
    others: Sequence[TaskStep] = field(default=())

    @cached_property
    def parts(self) -> tuple[TaskStep, ...]:
        """What every task had of it."""
        return (TaskStep(self.task, self.loss, self.finished, self.batches), *self.others)

    def part_of(self, task: Task) -> TaskStep | None:
        """What a task had of it; None where it was not drawn."""
        return next((part for part in self.parts if part.task is task), None)


class Training:
    """A run under way: a model, what moves it, and how far its tasks have come.

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
        leaders: the tasks that are drawn; the others share the rows of one of them.
        total_steps: global steps until every target has had its expected ones, as planned at first: with one
            task a step, the expected steps of all tasks together.
        stop_request: whether a signal asks this process to end; None where nobody listens.
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
        self.recipe, self.tasks = recipe, list(recipe.tasks)
        self.model, self.replica, self.optimizer, self.ema = model, replica, optimizer, ema
        self.plan = recipe.plan
        self.total_steps = self.plan.total_steps
        self.leaders = [task for task in self.tasks if task.share_rows_with is None]
        self.base_rates = [group["lr"] for group in optimizer.param_groups]
        self.step = self.rows = self.tokens = 0
        self._rows_of_step = self._tokens_of_step = 0
        self.stop_request: StopRequest | None = None
        self._ranks_stop = False
        self._guard = Guard(optimizer, late=reads_late(recipe, optimizer, ema))
        # Averaging over ranks and balancing compute with whole gradients, and a GPU passes over them at once.
        self._takes_rows = (
            takes_rows(optimizer)
            and recipe.device.type == "cpu"
            and num_ranks() == 1
            and not (recipe.balance is not None and recipe.balance.needs_gradients)
        )
        self._ahead = ReadAhead(recipe.device) if reads_ahead(recipe.device) else None
        self._attached: dict[str, Stateful] = {}
        self._unclaimed: dict[str, Any] = {}

    def attach(self, name: str, thing: Stateful) -> None:
        """Keep the state of somebody who watches the run in its checkpoints, under a name.

        If the run goes on from a checkpoint that has such a state, it is given to the thing.
        """
        self._attached[name] = thing
        if name in self._unclaimed:
            thing.load_state_dict(self._unclaimed.pop(name))

    def attached(self, name: str) -> Stateful | None:
        """Who watches the run under a name, if anybody does."""
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
        """Whether every target has had its steps, or the run as many as it may have."""
        return self.is_cut or all(task.done for task in self.tasks if task.is_target)

    @property
    def is_cut(self) -> bool:
        """Whether the run has had its `max_steps`."""
        return self.recipe.max_steps is not None and self.step >= self.recipe.max_steps

    def next_step(self) -> Step:
        """Draw a task, or several, and train them on their next batches."""
        tasks = self._drawn()
        if self._ahead is None:
            return self.step_on_several([(task, task.batches(task.step)) for task in tasks])
        step = self.step_on_several(list(zip(tasks, self._ahead.batches(tasks), strict=True)))
        if not self.is_over:
            self._ahead.begin(self._drawn())
        return step

    def _drawn(self) -> list[Task]:
        """The tasks of the next step; a function of its number and of how far all are."""
        progress = [task.progress() for task in self.leaders]
        names = self.plan.drawn(self.recipe.seed, self.step, progress)
        return [task for task in self.tasks if task.name in names]

    def step_on(self, task: Task, batches: Sequence[Tensors]) -> Step:
        """Train a task, in one step, on batches that are not necessarily its next ones."""
        return self.step_on_several([(task, batches)])

    def step_on_several(self, drawn: Sequence[tuple[Task, Sequence[Tensors]]]) -> Step:
        """Train tasks, in one step, on batches that are not necessarily their next ones.

        Where their learning-rate factors differ, the step has the mean.
        """
        factors = [task.learning_rate_factor for task, _ in drawn]
        factor = self.recipe.schedule(self.step) * (sum(factors) / len(factors))
        # From the base rates, not from those of the last step: a step's rate depends on its number alone.
        for group, rate in zip(self.optimizer.param_groups, self.base_rates, strict=True):
            group["lr"] = rate * factor
        self.model.train()
        # Dropout too is a function of position: a resumed run repeats it, and nothing else disturbs it.
        place = (self.step, rank()) if rank() else (self.step,)
        torch.manual_seed(int(generator(self.recipe.seed, "dropout", *place).integers(2**63)))
        counts = {task.name: task.step for task in self.tasks}
        names = [task.name for task, _ in drawn]
        attempt = Attempt(names, self.step, self.rows, self.tokens, counts)
        try:
            with (
                report_missing_ranks(f"at global step {self.step + 1}"),
                sparse_allowed(self._takes_rows),
            ):
                losses, norm = self._update(drawn, attempt)
        except NotFinite as error:
            raise self._refused(error) from None
        if self.ema is not None:
            self.ema.update()
        self.rows += self._rows_of_step
        self.tokens += self._tokens_of_step
        self.step += 1
        parts = []
        for (task, batches), loss in zip(drawn, losses, strict=True):
            task.step += 1
            finished = task.step == task.expected_steps and task.stopped_at is None
            parts.append(TaskStep(task, loss, finished, batches))
        rate = max(group["lr"] for group in self.optimizer.param_groups)
        first, *rest = parts
        return Step(
            *(self.step, first.task, first.loss, rate, first.finished, first.batches, norm), tuple(rest)
        )

    def settle(self) -> None:
        """Look at the last step's loss and norm, if nobody did yet; a GPU is waited for.

        Raises:
            TrainingError: one is not a number; the run is where it was before that step.
        """
        try:
            self._guard.read()
        except NotFinite as error:
            raise self._refused(error) from None

    def _refused(self, error: NotFinite) -> TrainingError:
        """What to tell of a step that was not made; all counts are those before it."""
        refused = error.attempt
        self.step, self.rows, self.tokens = refused.step, refused.rows, refused.tokens
        for task in self.tasks:
            task.step = refused.task_steps[task.name]
        first, *others = refused.tasks
        place = f"global step {self.step + 1}"
        begin = f"task {first!r}: {error} at its step {refused.task_steps[first] + 1} ({place})"
        return TrainingError(
            f"{f'{error} at {place}' if others else begin}; "
            "nothing was updated. Try a lower learning_rate, warmup_proportion above 0, or a smaller "
            "grad_clip, and look at the rows of this batch"
        )

    def _update(
        self, drawn: Sequence[tuple[Task, Sequence[Tensors]]], attempt: Attempt
    ) -> tuple[Sequence[Tensor], Tensor]:
        """One update; the tasks' losses before it, and the gradient's norm before clipping."""
        optimizer, parts = self.recipe.optimizer, self._parts(drawn)
        weights = [task.loss_weight * loss_scale(task, self.recipe.loss_scale) for task, _ in drawn]
        clipping: dict[str, Any] = {
            "grad_clip": optimizer.grad_clip,
            "grad_clip_type": optimizer.grad_clip_type,
        }
        if len(drawn) == 1:
            name = drawn[0][0].name
            loss, norm = train_step(
                *(self.replica, name, parts[0], self.optimizer),
                partial(self._guard.update, attempt),
                **clipping,
                loss_weight=weights[0],
            )
            return [loss], norm
        shared = [Shared(t.name, p, w) for (t, _), p, w in zip(drawn, parts, weights, strict=True)]
        return self._balanced(shared, attempt, **clipping)

    def _balanced(
        self,
        drawn: Sequence[Shared],
        attempt: Attempt,
        grad_clip: float | None,
        grad_clip_type: GradClipType,
    ) -> tuple[Sequence[Tensor], Tensor]:
        """One update on several tasks, balanced as the recipe says."""
        balance, names = self.recipe.balance, [each.task for each in drawn]
        self.optimizer.zero_grad(set_to_none=True)
        if balance is not None and balance.needs_gradients:
            draws = generator(self.recipe.seed, "balance", self.step)
            losses = balanced_gradients(
                self.replica, drawn, lambda gramian: balance.of_gradients(names, gramian, draws)
            )
        else:
            factors = [1.0] * len(drawn) if balance is None else balance.of_losses(names)
            weighted = [replace(each, weight=each.weight * f) for each, f in zip(drawn, factors, strict=True)]
            losses = sum_of_losses(self.replica, weighted)
        norm = clip(self.replica.parameters(), grad_clip, grad_clip_type)
        told = {f"loss of task {name!r}": loss for name, loss in zip(names, losses, strict=True)}
        values = self._guard.update(attempt, {**told, "gradient's norm": norm})
        if balance is not None:
            assert values is not None  # nothing is read late then
            balance.observe(names, values[:-1])
        return list(losses), norm

    def _parts(self, drawn: Sequence[tuple[Task, Sequence[Tensors]]]) -> list[list[tuple[Tensors, float]]]:
        """Per task the batches where they are computed, each with its share in the loss of all ranks."""
        counts = [[self.model.num_terms(task.name, batch) for batch in own] for task, own in drawn]
        batches = [batch for task, own in drawn if task.share_rows_with is None for batch in own]
        rows = sum(len(next(iter(batch.values()))) for batch in batches)
        masks = [batch[name] for batch in batches for name in batch if name.startswith("input_mask")]
        # A signal reaches ranks in different steps; along with the counts they agree on one, at no cost.
        here = [rows, sum(int(mask.sum()) for mask in masks), int(self._is_asked_to_stop())]
        shares, (self._rows_of_step, self._tokens_of_step, stops) = self.replica.shares(counts, here)
        self._ranks_stop = stops > 0
        device = self.recipe.device
        return [
            [(placed(batch, device), each) for batch, each in zip(own, share, strict=True)]
            for (_, own), share in zip(drawn, shares, strict=True)
        ]

    @property
    def is_stopping(self) -> bool:
        """Whether a signal has asked any rank to end after this step; all ranks say the same."""
        return self._is_asked_to_stop() if num_ranks() == 1 else self._ranks_stop

    def _is_asked_to_stop(self) -> bool:
        return self.stop_request is not None and self.stop_request.number is not None

    def record_score(self, task: Task, score: float) -> None:
        """Take a dev score in, for mixing strategies that follow scores.

        Args:
            task: whose score it is.
            score: from 0 to 1, the higher the better.
        """
        task.scores.append(score)
        if not self.recipe.mixing.follows_scores:
            return
        # The steps that are left are planned anew; a target that had its steps keeps its count. Each gets
        # one, and its share of the rest, rounded so that the run's last step stays where the schedule ends.
        going = np.array([other.step < other.expected_steps for other in self.leaders])
        weights = going * self.recipe.mixing.weights([other.progress() for other in self.leaders])
        most = max(self.total_steps - self.step, 1)
        left = max(most * self.plan.count - int(going.sum()), 0)
        bounds = np.round(left * np.cumsum(weights) / (weights.sum() or 1)).astype(int)
        more = dict(zip([leader.name for leader in self.leaders], np.diff(bounds, prepend=0), strict=True))
        for other in self.tasks:
            if other.step < other.expected_steps:
                other.expected_steps = other.step + min(
                    1 + int(more[other.share_rows_with or other.name]), most
                )

    def averaged(self) -> AbstractContextManager[Any]:
        """Within this context the model has the averaged weights, where the run keeps averages."""
        self.settle()
        return nullcontext() if self.ema is None else self.ema.applied()

    def state_dict(self) -> dict[str, Any]:
        """How far the run has come; weights and optimizer have state of their own."""
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
        """Go on from where `state_dict` was taken.

        Args:
            state: what it gave.
            steps_per_saved: task -> how many of its steps now have the rows of one step then; 1 where
                absent. Where it is another number, the task goes on at the same part of its plan.
        """
        factors = {task.name: 1.0 for task in self.tasks} | dict(steps_per_saved or {})
        for task in self.tasks:
            factor, expected = factors[task.name], state["expected_steps"][task.name]
            task.scores = list(state["scores"][task.name])
            task.stopped_at = state["stopped_at"][task.name]
            if self.recipe.mixing.follows_scores:
                task.expected_steps = round(expected * factor)
            if factor != 1 and expected:
                factor = task.expected_steps / expected
            task.step = round(state["task_steps"][task.name] * factor)
        had, has = (sum(steps) for steps in (state["task_steps"].values(), (t.step for t in self.tasks)))
        self.step = state["step"] if had == has else round(state["step"] * has / had)
        if self.recipe.balance is not None:
            self.recipe.balance.load_state_dict(state["balance"])
        self.rows, self.tokens = state.get("rows", 0), state.get("tokens", 0)
        self._unclaimed = dict(state["attached"])
        for name, thing in self._attached.items():
            if name in self._unclaimed:
                thing.load_state_dict(self._unclaimed.pop(name))
