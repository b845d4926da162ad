"""PaddlePALM's schedules: linear decay as in BERT, noam and a constant rate, each after a warm-up."""

from __future__ import annotations

from palm.core.checks import raise_any, type_problems
from palm.core.errors import ConfigError
from palm.lr_sched.base import LR_SCHEDULES, Schedule, warmup_problems


@LR_SCHEDULES.register("linear_warmup_decay")
class TriangularScheduler(Schedule):
    """Linear warm-up from 0, then linear decay to 0 over the whole run, as in BERT.

    `step / warmup_steps` before `warmup_steps`, `1 − step / num_train_steps` from there on, and 0 beyond the
    end. The decay counts from step 0, so the factor drops slightly at the end of the warm-up. Without a
    warm-up the factor is always 1: PALM's `warmup_proportion: 0`.

    Args:
        warmup_steps: number of warm-up steps.
        num_train_steps: number of steps until the factor is 0.

    Raises:
        ConfigError: unless 0 ≤ `warmup_steps` < `num_train_steps`.
    """

    def __init__(self, warmup_steps: float, num_train_steps: float) -> None:
        numbers = {"warmup_steps": warmup_steps, "num_train_steps": num_train_steps}
        raise_any(type_problems((int, float), "a number", **numbers))
        raise_any(warmup_problems(warmup_steps, num_train_steps))
        self.warmup_steps = warmup_steps
        self.num_train_steps = num_train_steps

    def __call__(self, step: int) -> float:
        if self.warmup_steps == 0:
            return 1.0
        if step < self.warmup_steps:
            return step / self.warmup_steps
        # PALM counts the decay from step 0, not from the end of the warm-up.
        return max(0.0, 1.0 - step / self.num_train_steps)

    def simplest(self) -> Schedule:
        """Return a constant schedule if there is no warm-up."""
        return self if self.warmup_steps else WarmupScheduler(0)


@LR_SCHEDULES.register("noam", "noam_decay")
class NoamScheduler(Schedule):
    """Linear warm-up, then decay with the square root of the step; the peak is the learning rate.

    With t = step + 1: `min(t / warmup_steps, √(warmup_steps / t))`. Unlike the paper's formula, it does not
    depend on the model's width, nor on the length of the run.

    Args:
        warmup_steps: the step at which the factor is 1.

    Raises:
        ConfigError: unless `warmup_steps` is above 0.

    Source: Vaswani et al., 2017, arXiv:1706.03762, section 5.3, scaled as in PaddlePALM 0.2.1.
    """

    def __init__(self, warmup_steps: float) -> None:
        if not warmup_steps > 0:
            raise ConfigError(
                f"noam needs at least one warm-up step, not {warmup_steps!r}; increase warmup_proportion"
            )
        self.warmup_steps = warmup_steps

    def __call__(self, step: int) -> float:
        # Counted from 1; otherwise the rate of the first step would be 0.
        ratio = (step + 1) / self.warmup_steps
        return float(min(ratio, ratio**-0.5))


@LR_SCHEDULES.register("constant")
class WarmupScheduler(Schedule):
    """Linear warm-up from 0, then a constant rate; without a warm-up, a constant rate throughout.

    Args:
        warmup_steps: number of warm-up steps; 0 for none.

    Raises:
        ConfigError: if `warmup_steps` is negative.
    """

    def __init__(self, warmup_steps: float) -> None:
        if not warmup_steps >= 0:
            raise ConfigError(f"warmup_steps should be 0 or more, not {warmup_steps!r}")
        self.warmup_steps = warmup_steps

    def __call__(self, step: int) -> float:
        return step / self.warmup_steps if step < self.warmup_steps else 1.0


TriangularSchedualer = TriangularScheduler
"""PaddlePALM 2.x's spelling."""

WarmupSchedualer = WarmupScheduler
"""PaddlePALM 2.x's spelling."""
