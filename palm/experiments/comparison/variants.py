"""The ways of training to compare, and their lengths."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from palm.mixing import MixRatio
from palm.train.planning import StepPlan

REFERENCE = "together"

STAGED = "staged"
"""The variant that trains in the `stages` of the configuration."""

ALONE = "alone"
"""The name in a verdict of a target that is trained by itself."""

ALIKE = 0.05
"""The share by which numbers of updates may differ and still count as equal."""


@dataclass(frozen=True)
class Variant:
    """One way of training.

    Args:
        name: of its runs.
        label: its name in a verdict: `alone`, `without mlm`.
        tasks: the tasks that it trains, in the configuration's order.
        changes: settings of the whole run in which it differs.
        is_way: whether it trains all tasks, and so is judged against every target alone.
    """

    name: str
    label: str
    tasks: Sequence[str]
    changes: Mapping[str, Any] = field(default_factory=dict)
    is_way: bool = False

    @property
    def is_alone(self) -> bool:
        """True if it trains a target by itself."""
        return not self.is_way and self.label.startswith(ALONE)


@dataclass(frozen=True)
class Length:
    """The length of a variant's runs.

    Args:
        num_epochs: of its main task; None for as many as `max_steps` allows.
        steps: task -> planned steps.
        total: updates, that is optimizer steps of the run, each of which may train several tasks.
        max_steps: upper limit of the updates.
    """

    num_epochs: float | None
    steps: Mapping[str, int]
    total: int
    max_steps: int | None = None


def variants_of(tasks: Mapping[str, bool]) -> list[Variant]:
    """Return the variants: all tasks together (the reference), each target alone, and without each auxiliary.

    If two variants would train the same tasks, only the first is returned.

    Args:
        tasks: name -> whether it is a target, in the configuration's order.
    """
    found = [Variant(REFERENCE, REFERENCE, list(tasks), is_way=True)]
    found += [Variant(f"{ALONE}-{name}", ALONE, [name]) for name, is_target in tasks.items() if is_target]
    for name, is_target in tasks.items():
        if not is_target:
            rest = [other for other in tasks if other != name]
            found.append(Variant(f"without-{name}", f"without {name}", rest))
    first = {tuple(variant.tasks): variant for variant in reversed(found)}
    return [variant for variant in found if first[tuple(variant.tasks)] is variant]


def lengths_of(variants: Sequence[Variant], whole: StepPlan, num_epochs: float | None) -> list[Length]:
    """Choose the length of every variant so that each target has the same steps in all of them.

    Args:
        variants: the ways of training, first the one with all tasks.
        whole: the plan of the run of all tasks.
        num_epochs: of the main task in that run.
    """
    parts = (part_of(whole, variant.tasks) for variant in variants[1:])
    return [length_of(whole, num_epochs), *(fitted(part, num_epochs, whole) for part in parts)]


def length_of(plan: StepPlan, num_epochs: float | None) -> Length:
    """Return the length of a planned run."""
    return Length(num_epochs, plan.expected_steps, plan.total_steps, plan.max_steps)


def fitted(plan: StepPlan, num_epochs: float | None, whole: StepPlan) -> Length:
    """Choose the length of a run so that each target has the same steps as in the run of all tasks.

    Args:
        plan: of the run, with its expected steps.
        num_epochs: of its main task, used if that results in the same steps.
        whole: the plan of the run of all tasks.
    """
    wanted = {task.name: whole.expected_steps[task.name] for task in plan.tasks if task.is_target}
    per_epoch = plan.main.mix_ratio * plan.main.steps_per_epoch
    main = wanted[plan.main.name]
    # The quotient, multiplied and truncated again, may be a step short; with half a step more it is not.
    epochs = [main / per_epoch, (main + 0.5) / per_epoch]
    candidates: list[tuple[float | None, int | None]] = [(each, None) for each in epochs]
    candidates.append((None, plan.total_steps))
    if num_epochs is not None:
        candidates.insert(0, (num_epochs, None))
    lengths = [length_of(planned(plan, *each), each[0]) for each in candidates]
    return min(lengths, key=lambda length: sum(abs(length.steps[name] - n) for name, n in wanted.items()))


def controls_of(ways: Sequence[tuple[Variant, Length]], whole: StepPlan) -> list[tuple[Variant, Length]]:
    """Return variants of every target alone with as many updates as each way of all tasks, if missing."""
    found: list[tuple[Variant, Length]] = []
    for way, length in ways:
        for target in (task.name for task in whole.tasks if task.is_target and way.is_way):
            alone = [own for variant, own in [*ways, *found] if variant.is_alone and target in variant.tasks]
            if all(abs(own.total - length.total) > ALIKE * length.total for own in alone):
                plan = planned(part_of(whole, [target]), None, length.total)
                name = f"{ALONE}-{target}-{length.total}-updates"
                label = f"{ALONE} for {length.total} updates"
                found.append((Variant(name, label, [target]), length_of(plan, None)))
    return found


def part_of(whole: StepPlan, names: Sequence[str]) -> StepPlan:
    """Return the plan of some of the tasks, with the same steps as among all, and without a step limit.

    Tasks that share the rows of one that is missing are drawn themselves. A task by itself has no mixing.
    """
    tasks = [
        replace(task, share_rows_with=task.share_rows_with if task.share_rows_with in names else None)
        for task in whole.tasks
        if task.name in names
    ]
    if len(tasks) == 1:
        return StepPlan(tasks=[replace(tasks[0], mix_ratio=1.0)], mixing=MixRatio())
    part = replace(whole, tasks=tasks, max_steps=None)
    return replace(part, tasks_per_step=min(whole.count, len(part.primary_tasks)))


def planned(plan: StepPlan, num_epochs: float | None, max_steps: int | None) -> StepPlan:
    """Return the plan of a run with another length."""
    return replace(plan, max_steps=max_steps).over_epochs(num_epochs)
