"""Base class for custom schedules written for PaddlePALM 2.x: `_build` turns a rate into a schedule."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable

from palm.optimizer.lr_sched import Schedule


class Schedualer(Schedule):
    """The base class of schedules in PaddlePALM 2.x, in its spelling.

    A subclass has the method `_build`. In Paddle it returned a variable computed from a step counter; here it
    returns a function from the step, counted from 0, to the rate.
    """

    def __init__(self) -> None:
        self._prog: object = None

    def _set_prog(self, prog: object) -> None:
        """Set the parameters of the optimizer."""
        self._prog = prog

    @abstractmethod
    def _build(self, learning_rate: float) -> Callable[[int], float] | float:
        """Return the rate as a function of the step, or a constant; `learning_rate` is the base rate."""

    def __call__(self, step: int) -> float:
        built = self._build(1.0)
        return float(built(step) if callable(built) else built)
