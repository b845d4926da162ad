"""Schedules as programs of PaddlePALM 2.x write them: `_build` turns a rate into one that moves."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Mapping
from typing import ClassVar

from palm.lr_sched.base import Schedule


class Schedualer(Schedule):
    """The base class of schedules in PaddlePALM 2.x, in its spelling.

    A subclass has the method `_build`. In Paddle it gave a variable made of operators on a step counter;
    here it gives a function from the number of the step, from 0, to the rate.
    """

    not_called: ClassVar[Mapping[str, str]] = {}

    def __init__(self) -> None:
        self._prog: object = None

    def _set_prog(self, prog: object) -> None:
        """Take what the optimizer moves."""
        self._prog = prog

    @abstractmethod
    def _build(self, learning_rate: float) -> Callable[[int], float] | float:
        """The rate by step, or one for all steps, where `learning_rate` is the highest."""

    def __call__(self, step: int) -> float:
        built = self._build(1.0)
        return float(built(step) if callable(built) else built)
