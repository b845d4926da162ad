"""The ways of training that are compared, and how long each trains."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

from palm.mixing import Mixing, TaskProgress

Budget = Literal["target", "total"]
"""What is equal in all variants: the steps of every target, or the steps of all tasks together."""

REFERENCE = "together"

STAGED = "staged"
"""The variant that trains as `stages` says, whatever the budget of the others."""

ALONE = "alone"
"""How a verdict calls a target by itself."""


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
    """How long a variant trains.

    Args:
        num_epochs: of its main task.
        steps: task -> planned steps.
    """

    num_epochs: float
    steps: Mapping[str, int]

    @property
    def total(self) -> int:
        """Steps of all tasks."""
        return sum(self.steps.values())


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
    variants: Sequence[Variant],
    mixing: Mixing,
    tasks: Sequence[TaskProgress],
    num_epochs: float,
    budget: Budget,
) -> list[Length]:
    """How long every variant trains so that the budget is the same in all of them.

    Args:
        variants: the ways of training, that of all tasks first.
        mixing: how tasks take turns.
        tasks: as they stand before the first step.
        num_epochs: of the main task, in the run of all tasks.
        budget: `target`: a target has as many steps as in the run of all tasks; `total`: all tasks of a
            variant have as many steps together as there.
    """
    by_name = {task.name: task for task in tasks}
    whole = steps_of_all(mixing, tasks, num_epochs)
    found = []
    for variant in variants:
        chosen = [by_name[name] for name in variant.tasks]
        main = next(task for task in chosen if task.is_target)
        ratio = main.mix_ratio if len(chosen) > 1 else 1.0
        wanted = float(whole[main.name])
        if budget == "total":
            wanted *= sum(whole.values()) / sum(whole[name] for name in variant.tasks)
        exact = round(wanted) / (ratio * main.steps_per_epoch)
        # A quotient may lose a step when it is multiplied again and cut off; half a step more does not.
        more = (round(wanted) + 0.5) / (ratio * main.steps_per_epoch)
        is_same = len(chosen) == len(tasks) or (len(chosen) > 1 and budget == "target")
        lengths = [num_epochs] if is_same else [exact, more]
        planned = [steps_of_all(mixing, chosen, epochs) for epochs in lengths]
        best = next((k for k, steps in enumerate(planned) if steps[main.name] == round(wanted)), 0)
        found.append(Length(lengths[best], planned[best]))
    return found


def steps_of_all(mixing: Mixing, tasks: Sequence[TaskProgress], num_epochs: float) -> dict[str, int]:
    """Task -> planned steps, counted by the first target."""
    if len(tasks) == 1:
        return {tasks[0].name: int(num_epochs * tasks[0].steps_per_epoch)}
    main = next(k for k, task in enumerate(tasks) if task.is_target)
    return dict(
        zip([task.name for task in tasks], mixing.expected_steps(tasks, main, num_epochs), strict=True)
    )
