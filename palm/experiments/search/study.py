"""Trials whose settings Optuna chooses."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from palm.core.errors import PalmError
from palm.experiments.grid.folder import word_of
from palm.experiments.search.space import Range, Space, Values


class Study:
    """The trials of a sweep, chosen in memory by Optuna's tree-structured Parzen estimator.

    Args:
        space: the search space.
        seed: of the choices; every trial has its own, so a resumed study makes the same choices as an
            uninterrupted one.

    Raises:
        PalmError: optuna is missing.
    """

    def __init__(self, space: Space, seed: int) -> None:
        try:
            import optuna
        except ImportError:
            raise PalmError("a sweep with --trials needs optuna: pip install 'palm-torch[sweep]'") from None
        optuna.logging.set_verbosity(optuna.logging.WARNING)
        self._optuna = optuna
        self._space = space
        self._seed = seed
        self._study = optuna.create_study(direction="maximize")

    def next_point(self, known: Values | None) -> Values:
        """Return the point of the next trial: the known one, if the trial was begun before."""
        if known is not None:
            self._study.enqueue_trial(known)
        # Every trial has its own sampler, seeded by its number: the state of a shared one would depend on
        # the number of calls, which is different after a kill.
        self._study.sampler = self._optuna.samplers.TPESampler(seed=self._seed + len(self._study.trials))
        trial = self._study.ask()
        return {name: _suggested(trial, name, values) for name, values in self._space.items()}

    def tell(self, number: int, score: float | None) -> None:
        """Report the score of a trial; None if it failed."""
        self._study.tell(number, score, state=self._optuna.trial.TrialState.FAIL if score is None else None)


def _suggested(trial: Any, name: str, values: Sequence[Any] | Range) -> Any:
    if not isinstance(values, Range):
        # Optuna does not accept lists; as words of the command line they mean the same.
        return trial.suggest_categorical(
            name, [word_of(value) if isinstance(value, list) else value for value in values]
        )
    if isinstance(values.low, int) and isinstance(values.high, int):
        step = int(values.step or 1)
        return trial.suggest_int(name, values.low, values.high, step=step, log=values.log)
    return trial.suggest_float(name, values.low, values.high, step=values.step, log=values.log)
