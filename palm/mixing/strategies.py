"""The mixing strategies: fixed ratios, by size, annealed, round robin, and by dev scores."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

from palm.core.component import did_you_mean, number_problems, raise_any, share_problems
from palm.core.errors import ConfigError, about
from palm.mixing.base import (
    MIXINGS,
    Draws,
    EpochMixing,
    Mixing,
    TaskProgress,
    first_target,
    keep_target_for_last,
    plan_steps,
)


@MIXINGS.register("mix_ratio")
class MixRatio(EpochMixing):
    """Tasks are drawn in proportion to their `mix_ratio`, as in PaddlePALM."""

    def shares(self, tasks: Sequence[TaskProgress]) -> list[float]:
        """Return 1 for each task."""
        return [1.0] * len(tasks)


@MIXINGS.register("proportional")
class Proportional(EpochMixing):
    """Tasks are drawn in proportion to their sizes, so rows of all tasks are used equally often.

    With a `mix_ratio` of 1, a task gets `num_epochs` passes over its own rows.
    """

    def shares(self, tasks: Sequence[TaskProgress]) -> list[float]:
        """Return the number of steps in one pass over each task's rows."""
        return [float(task.steps_per_epoch) for task in tasks]


@MIXINGS.register("temperature")
class Temperature(EpochMixing):
    """Between proportional and equal: a task's rows are drawn in proportion to `min(rows, cap) ** (1 / T)`.

    T = 1 without a cap is `proportional`; larger values of T make the tasks more equal.

    Args:
        mixing_temperature: T of the strategy temperature, 1 or more.
        mixing_cap: for temperature, the number of rows above which the rows of a task do not count, so a huge
            task leaves room for the others; None for no cap.
        mixing_draws: planned: no task is drawn more often than planned, so every task has exactly its planned
            steps at the end of the run; independent: each step is drawn independently, as in PaddlePALM.

    Raises:
        ConfigError: a value is out of range.

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
        self.cap = math.inf if mixing_cap is None else mixing_cap
        settings = {"mixing_temperature": mixing_temperature, "mixing_cap": self.cap}
        raise_any(number_problems("1 or more", lambda value: value >= 1, **settings))
        self.exponent = 1 / mixing_temperature

    def shares(self, tasks: Sequence[TaskProgress]) -> list[float]:
        """Return the rate of each task's rows divided by the rows per step."""
        return [_per_step(task, min(task.rows, self.cap) ** self.exponent) for task in tasks]


@MIXINGS.register("annealed")
class Annealed(EpochMixing):
    """By size at first, nearly equal at the end: rows are drawn in proportion to `rows ** alpha`.

    In epoch e of E of the main task, the first target, `alpha = 1 - decay * (e - 1) / (E - 1)`.

    Args:
        mixing_decay: for annealed, the total decrease of alpha; above 0, at most 1.
        mixing_draws: planned: no task is drawn more often than planned, so every task has exactly its planned
            steps at the end of the run; independent: each step is drawn independently, as in PaddlePALM.

    Raises:
        ConfigError: the decay is out of range.

    Source: Stickland and Murray, 2019, arXiv:1902.02671, section 3.2, equation 3, with chances per row.
    """

    follows_plan = True

    def __init__(self, mixing_decay: float = 0.8, *, mixing_draws: Draws = "planned") -> None:
        super().__init__(mixing_draws=mixing_draws)
        raise_any(share_problems(mixing_decay=mixing_decay))
        self.decay = mixing_decay

    def shares(self, tasks: Sequence[TaskProgress]) -> list[float]:
        """Return the shares in the main task's current epoch."""
        main = tasks[first_target(tasks)]
        last = math.ceil(main.expected_steps / main.steps_per_epoch)
        return self._shares_in(tasks, min(1 + main.step // main.steps_per_epoch, last), last)

    def planned_shares(self, tasks: Sequence[TaskProgress], reference: int, num_epochs: float) -> list[float]:
        """Return the average over all epochs, relative to the main task."""
        main = tasks[first_target(tasks)]
        epochs = plan_steps(num_epochs, main.mix_ratio, main.steps_per_epoch) / main.steps_per_epoch
        if epochs <= 1:
            raise ConfigError(
                about(
                    "mixing", ": annealed changes with every epoch of the main task; set num_epochs above 1"
                )
            )
        if tasks[reference] is not main:
            raise ConfigError(
                about("mixing", f": annealed counts epochs of {main.name!r}; set sampling_reference to it")
            )
        return self._average(tasks, reference, epochs, math.ceil(epochs))

    def quotas(self, tasks: Sequence[TaskProgress], epochs: float) -> list[int]:
        """Plan the steps of each task by the average shares of these epochs."""
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
        """Return the average shares in the first `epochs` of `last` epochs, relative to the reference."""
        sums = [0.0] * len(tasks)
        for epoch in range(1, math.ceil(epochs) + 1):
            # The last epoch may be incomplete, and is weighted by its length.
            length = min(1.0, epochs - (epoch - 1))
            shares = self._shares_in(tasks, epoch, last)
            sums = [s + length * share / shares[reference] for s, share in zip(sums, shares, strict=True)]
        return [total / sums[reference] for total in sums]

    def _shares_in(self, tasks: Sequence[TaskProgress], epoch: int, last: int) -> list[float]:
        alpha = 1 - self.decay * (epoch - 1) / (last - 1)
        return [_per_step(task, task.rows**alpha) for task in tasks]


@MIXINGS.register("round_robin")
class RoundRobin(MixRatio):
    """Tasks take turns in the order of the configuration, without randomness.

    The next task is always the one whose steps are furthest behind its `mix_ratio`; a task with a ratio of
    0.5 gets every second turn.
    """

    def __init__(self) -> None:
        super().__init__()

    def draw(self, seed: int, step: int, tasks: Sequence[TaskProgress]) -> int:  # noqa: ARG002
        """Return the index of the next task, among those that have steps left."""
        left = keep_target_for_last(tasks, self.left(tasks))
        waits = any(left)
        turns = [
            # The middle of a task's next step, scaled by its ratio; the minimum is furthest behind.
            (task.step + 0.5) / task.mix_ratio if task.mix_ratio and (steps or not waits) else math.inf
            for task, steps in zip(tasks, left, strict=True)
        ]
        return turns.index(min(turns))


@MIXINGS.register("dev_score")
class DevScore(Mixing):
    """Tasks far below a reference score are drawn more often, in proportion to the gap.

    A task without a dev score is drawn as often as the average of the others. After every evaluation the
    remaining steps are planned again; a target is saved when it has the steps of the latest plan.

    Args:
        mixing_references: for dev_score, task -> the score that its dev score is compared with, for instance
            that of a model trained only on this task; 1 by default.
        mixing_floor: for dev_score, the share of a task without a gap, relative to the average task.
        mixing_draws: planned: no task is drawn more often than planned, so every task has exactly its planned
            steps at the end of the run; independent: each step is drawn independently, as in PaddlePALM.

    Raises:
        ConfigError: the floor is out of range.

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
        raise_any(share_problems(mixing_floor=mixing_floor))
        self.references = dict(mixing_references or {})
        self.floor = mixing_floor

    def shares(self, tasks: Sequence[TaskProgress]) -> list[float]:
        """Return `floor + (1 - floor) * gap / average gap` for each task; 1 each without scores."""
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
        """Return the remaining steps, which the latest plan has distributed by the weights."""
        return left

    def planned_shares(self, tasks: Sequence[TaskProgress], reference: int, num_epochs: float) -> list[float]:
        """Check the names of references; return 1 for each task, since there are no scores yet."""
        known = [task.name for task in tasks]
        if unknown := [name for name in self.references if name not in known]:
            raise ConfigError(
                about("mixing_references", f": no task is called {name!r}{did_you_mean(name, known)}")
                for name in unknown
            )
        return super().planned_shares(tasks, reference, num_epochs)


def _per_step(task: TaskProgress, rate: float) -> float:
    """Return the share of a task whose rows are drawn at this rate, a batch at a time."""
    return rate * task.steps_per_epoch / task.rows
