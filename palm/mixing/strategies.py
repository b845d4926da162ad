"""The mixing strategies: fixed ratios, by size, annealed, in turn, and driven by dev scores."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

from palm.core.checks import raise_any
from palm.core.errors import ConfigError
from palm.core.registry import did_you_mean
from palm.mixing.base import (
    MIXINGS,
    Draws,
    EpochMixing,
    Mixing,
    TaskProgress,
    first_target,
    keep_target_for_last,
)
from palm.mixing.draws import plan_steps


@MIXINGS.register("mix_ratio")
class MixRatio(EpochMixing):
    """Every task is drawn in proportion to its `mix_ratio` throughout: PALM's own way."""

    def shares(self, tasks: Sequence[TaskProgress]) -> list[float]:
        """1 each."""
        return [1.0] * len(tasks)


@MIXINGS.register("proportional")
class Proportional(EpochMixing):
    """Tasks are drawn in proportion to their sizes, so that each sees its rows equally often.

    With a `mix_ratio` of 1, a task gets `num_epochs` passes over its own rows.
    """

    def shares(self, tasks: Sequence[TaskProgress]) -> list[float]:
        """The number of steps of one pass over each task's rows."""
        return [float(task.steps_per_epoch) for task in tasks]


@MIXINGS.register("temperature")
class Temperature(EpochMixing):
    """Between sizes and equality: a task's rows are drawn in proportion to `min(rows, cap) ** (1 / T)`.

    T = 1 without a cap is `proportional`; the larger T, the more equal are the tasks.

    Args:
        mixing_temperature: of temperature, T: 1 or more.
        mixing_cap: of temperature; rows above this number do not count, so that a huge task leaves room for
            the others; None for no limit.
        mixing_draws: planned: no task is drawn beyond its planned steps, so that every one has exactly these
            when the run ends; independent: every step is drawn for itself, as PaddlePALM does.

    Raises:
        ConfigError: for values outside their range.

    Source: Raffel et al., 2020, arXiv:1910.10683, section 3.5.2, with chances per row.
    """

    def __init__(
        self,
        mixing_temperature: float = 2.0,
        mixing_cap: int | None = None,
        *,
        mixing_draws: Draws = "planned",
    ) -> None:
        super().__init__(mixing_draws=mixing_draws)
        problems = []
        if not mixing_temperature >= 1:
            problems.append(f"mixing_temperature should be 1 or more, not {mixing_temperature!r}")
        if mixing_cap is not None and not mixing_cap >= 1:
            problems.append(f"mixing_cap should be 1 or more rows, or null for no cap, not {mixing_cap!r}")
        raise_any(problems)
        self.exponent = 1 / mixing_temperature
        self.cap = math.inf if mixing_cap is None else mixing_cap

    def shares(self, tasks: Sequence[TaskProgress]) -> list[float]:
        """The rate of each task's rows, divided by the rows of a step."""
        return [_per_step(task, min(task.rows, self.cap) ** self.exponent) for task in tasks]


@MIXINGS.register("annealed")
class Annealed(EpochMixing):
    """By size at first, nearly equal at last: rows are drawn in proportion to `rows ** alpha`.

    In epoch e of E of the main task, the first target, `alpha = 1 - decay * (e - 1) / (E - 1)`.

    Args:
        mixing_decay: of annealed, how far alpha falls; above 0, at most 1.
        mixing_draws: planned: no task is drawn beyond its planned steps, so that every one has exactly these
            when the run ends; independent: every step is drawn for itself, as PaddlePALM does.

    Raises:
        ConfigError: for a value outside its range.

    Source: Stickland and Murray, 2019, arXiv:1902.02671, section 3.2, equation 3, with chances per row.
    """

    follows_plan = True

    def __init__(self, mixing_decay: float = 0.8, *, mixing_draws: Draws = "planned") -> None:
        super().__init__(mixing_draws=mixing_draws)
        if not 0 < mixing_decay <= 1:
            raise ConfigError(f"mixing_decay should be above 0 and at most 1, not {mixing_decay!r}")
        self.decay = mixing_decay

    def shares(self, tasks: Sequence[TaskProgress]) -> list[float]:
        """Those of the epoch that the main task is in."""
        main = tasks[first_target(tasks)]
        last = math.ceil(main.expected_steps / main.steps_per_epoch)
        return self._shares_in(tasks, min(1 + main.step // main.steps_per_epoch, last), last)

    def planned_shares(self, tasks: Sequence[TaskProgress], reference: int, num_epochs: float) -> list[float]:
        """The average of the epochs, relative to the main task."""
        main = tasks[first_target(tasks)]
        epochs = plan_steps(num_epochs, main.mix_ratio, main.steps_per_epoch) / main.steps_per_epoch
        if epochs <= 1:
            raise ConfigError(
                "mixing: annealed changes from epoch to epoch of the main task; set num_epochs above 1"
            )
        if tasks[reference] is not main:
            raise ConfigError(
                f"mixing: annealed counts the epochs of {main.name!r}; make it the sampling_reference"
            )
        return self._average(tasks, reference, epochs, math.ceil(epochs))

    def quotas(self, tasks: Sequence[TaskProgress], epochs: float) -> list[int]:
        """By the average of the epochs so far."""
        number = first_target(tasks)
        main = tasks[number]
        shares = self._average(tasks, number, epochs, math.ceil(main.expected_steps / main.steps_per_epoch))
        return [
            plan_steps(epochs / main.mix_ratio, task.mix_ratio, main.steps_per_epoch, share)
            for task, share in zip(tasks, shares, strict=True)
        ]

    def _average(
        self, tasks: Sequence[TaskProgress], reference: int, epochs: float, last: int
    ) -> list[float]:
        """The average shares in the first of `last` epochs, relative to those of the reference."""
        sums = [0.0] * len(tasks)
        for epoch in range(1, math.ceil(epochs) + 1):
            # The last epoch may be cut short, and counts by its length.
            length = min(1.0, epochs - (epoch - 1))
            shares = self._shares_in(tasks, epoch, last)
            sums = [s + length * share / shares[reference] for s, share in zip(sums, shares, strict=True)]
        return [total / sums[reference] for total in sums]

    def _shares_in(self, tasks: Sequence[TaskProgress], epoch: int, last: int) -> list[float]:
        alpha = 1 - self.decay * (epoch - 1) / (last - 1)
        return [_per_step(task, task.rows**alpha) for task in tasks]


@MIXINGS.register("round_robin")
class RoundRobin(EpochMixing):
    """Tasks in turn, in the order of the configuration; nothing is left to chance.

    A task of `mix_ratio` 0.5 gets every second turn: always the task comes next whose steps lie
    furthest behind its ratio.
    """

    def __init__(self) -> None:
        super().__init__()

    def shares(self, tasks: Sequence[TaskProgress]) -> list[float]:
        """1 each."""
        return [1.0] * len(tasks)

    def draw(self, seed: int, step: int, tasks: Sequence[TaskProgress]) -> int:  # noqa: ARG002
        """The index of the task whose turn it is, of those that have steps left."""
        left = keep_target_for_last(tasks, self.left(tasks))
        waits = any(left)
        turns = [
            # The middle of a task's next step on the scale of its ratio; the least is furthest behind.
            (task.step + 0.5) / task.mix_ratio if task.mix_ratio and (steps or not waits) else math.inf
            for task, steps in zip(tasks, left, strict=True)
        ]
        return turns.index(min(turns))


@MIXINGS.register("dev_score")
class DevScore(Mixing):
    """Tasks far from their goal are drawn more often: in proportion to the gap to a reference score.

    Until a task has a dev score, it is drawn like the average of the others. After every evaluation
    the steps that are left are planned again; a target is saved at its count of the newest plan.

    Args:
        mixing_references: of dev_score: task -> the score to compare its dev score with, for instance that
            of a model of this task alone; 1 for tasks that are not named.
        mixing_floor: of dev_score, the share that a task without any gap keeps, of the average task's.
        mixing_draws: planned: no task is drawn beyond its planned steps, so that every one has exactly these
            when the run ends; independent: every step is drawn for itself, as PaddlePALM does.

    Raises:
        ConfigError: for a floor outside its range.

    Source: Gottumukkala et al., 2020, arXiv:2011.00120, "dynamic sampling", with a floor.
    """

    follows_scores = True

    def __init__(
        self,
        mixing_references: Mapping[str, float] | None = None,
        mixing_floor: float = 0.1,
        *,
        mixing_draws: Draws = "planned",
    ) -> None:
        super().__init__(mixing_draws=mixing_draws)
        if not 0 < mixing_floor <= 1:
            raise ConfigError(f"mixing_floor should be above 0 and at most 1, not {mixing_floor!r}")
        self.references = dict(mixing_references or {})
        self.floor = mixing_floor

    def shares(self, tasks: Sequence[TaskProgress]) -> list[float]:
        """`floor + (1 - floor) * gap / average gap`; 1 where there is no score."""
        gaps = {
            task.name: max(self.references.get(task.name, 1.0) - task.scores[-1], 0.0)
            for task in tasks
            if task.scores
        }
        if not any(gaps.values()):
            return [1.0] * len(tasks)
        average = sum(gaps.values()) / len(gaps)
        return [self.floor + (1 - self.floor) * gaps.get(task.name, average) / average for task in tasks]

    def chances(self, weights: Sequence[float], left: Sequence[int]) -> Sequence[float]:  # noqa: ARG002
        """The steps that are left: the newest plan has shared them out by the weights."""
        return left

    def planned_shares(self, tasks: Sequence[TaskProgress], reference: int, num_epochs: float) -> list[float]:
        """1 each: nobody knows the scores yet."""
        known = [task.name for task in tasks]
        if strange := [name for name in self.references if name not in known]:
            raise ConfigError(
                f"mixing_references: no task is called {name!r}{did_you_mean(name, known)}"
                for name in strange
            )
        return super().planned_shares(tasks, reference, num_epochs)


def _per_step(task: TaskProgress, rate: float) -> float:
    """The chance of a task whose rows are drawn at this rate, many at a time."""
    return rate * task.steps_per_epoch / task.rows
