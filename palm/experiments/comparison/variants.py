"""The ways of training that are compared, and how long each trains."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Literal

from palm.engine.training.planning import StepPlan
from palm.mixing import MixRatio

Budget = Literal["target", "total"]
"""The quantity that is equal in all variants: the steps of every target, or of all tasks together."""

REFERENCE = "together"

STAGED = "staged"
"""The variant that trains as `stages` says, whatever the budget of the others."""

ALONE = "alone"
"""The name of a target by itself in a verdict."""


@dataclass(frozen=True)
class Variant:
    """One way of training.

    Args:
        name: of its runs.
        said: how a verdict calls it: `alone`, `without mlm`.
        tasks: that it trains, in the configuration's order.
        changes: settings of the whole run in which it differs.
        as_given: whether it is as long as its own settings say, whatever the budget is.
    """

    name: str
    said: str
    tasks: Sequence[str]
    changes: Mapping[str, Any] = field(default_factory=dict)
    as_given: bool = False


@dataclass(frozen=True)
class Length:
    """The length of a variant's runs.

    Args:
        num_epochs: of its main task; None for as many as `max_steps` allows.
        steps: task -> planned steps.
        total: optimizer steps of the run, each of which may train several tasks.
        max_steps: the most of them.
    """

    num_epochs: float | None
    steps: Mapping[str, int]
    total: int
    max_steps: int | None = None

    def __str__(self) -> str:
        return ", ".join(f"{name} {steps}" for name, steps in self.steps.items())


def variants_of(tasks: Mapping[str, bool]) -> list[Variant]:
    """All tasks together, which the others are compared with; each target alone; without each auxiliary.

    Where two would train the same tasks, the first of them is there.

    Args:
        tasks: name -> whether it is a target, in the configuration's order.
    """
    found = [Variant(REFERENCE, REFERENCE, list(tasks))]
    found += [Variant(f"{ALONE}-{name}", ALONE, [name]) for name, is_target in tasks.items() if is_target]
    for name, is_target in tasks.items():
        if not is_target:
            rest = [other for other in tasks if other != name]
            found.append(Variant(f"without-{name}", f"without {name}", rest))
    first = {tuple(variant.tasks): variant for variant in reversed(found)}
    return [variant for variant in found if first[tuple(variant.tasks)] is variant]


def lengths_of(
    variants: Sequence[Variant], whole: StepPlan, num_epochs: float | None, budget: Budget
) -> list[Length]:
    """Choose how long every variant trains so that the budget is the same in all of them.

    Args:
        variants: the ways of training, that of all tasks first.
        whole: the plan of the run of all tasks.
        num_epochs: of the main task, in that run.
        budget: `target`: a target has as many steps as in the run of all tasks; `total`: all tasks of a
            variant have as many steps together as there.
    """
    found = [Length(num_epochs, whole.expected_steps, whole.total_steps, whole.max_steps)]
    for variant in variants[1:]:
        part = part_of(whole, variant.tasks)
        wanted = {task.name: task.expected_steps for task in part.tasks if task.is_target}
        if budget == "total":
            factor = _batches(whole) / _batches(part)
            wanted = {part.main.name: round(factor * wanted[part.main.name])}
        per_epoch = part.main.mix_ratio * part.main.steps_per_epoch
        main = wanted[part.main.name]
        # A quotient may lose a step when it is multiplied again and cut off; half a step more does not.
        candidates: list[tuple[float | None, int | None]] = [
            (main / per_epoch, None),
            ((main + 0.5) / per_epoch, None),
            (None, part.total_steps),
        ]
        if num_epochs is not None:
            candidates.insert(0, (num_epochs, None))
        plans = [_planned(part, *candidate) for candidate in candidates]
        k = min(range(len(plans)), key=lambda k: _distance(plans[k], wanted))
        epochs, max_steps = candidates[k]
        found.append(Length(epochs, plans[k].expected_steps, plans[k].total_steps, max_steps))
    return found


def part_of(whole: StepPlan, names: Sequence[str]) -> StepPlan:
    """Return the plan of some of the tasks, with the steps that they have among all, and without a limit.

    Tasks that share the rows of one that is not among them are drawn themselves. A task by itself has no
    mixing.
    """
    tasks = [
        replace(task, share_rows_with=task.share_rows_with if task.share_rows_with in names else None)
        for task in whole.tasks
        if task.name in names
    ]
    if len(tasks) == 1:
        return StepPlan(tasks=[replace(tasks[0], mix_ratio=1.0)], mixing=MixRatio())
    part = replace(whole, tasks=tasks, max_steps=None)
    if whole.tasks_per_step == "all":
        return part
    return replace(part, tasks_per_step=min(whole.tasks_per_step, len(part.primary_tasks)))


def _planned(part: StepPlan, num_epochs: float | None, max_steps: int | None) -> StepPlan:
    return replace(part, max_steps=max_steps).over_epochs(num_epochs)


def _distance(plan: StepPlan, wanted: Mapping[str, int]) -> int:
    return sum(abs(plan.expected_steps[name] - steps) for name, steps in wanted.items())


def _batches(plan: StepPlan) -> int:
    return sum(task.expected_steps for task in plan.primary_tasks)
