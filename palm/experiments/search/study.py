"""Optuna as a source of trials: it asks for the next point, and is told what came of it."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

from palm.core.errors import PalmError
from palm.experiments.grid.pool import Result
from palm.experiments.search.space import Choices, Space, Values, text

NAME, FILE = "palm", "study.db"
NEEDS = "a sweep with --trials needs optuna: pip install 'palm-torch[sweep]'"


def optuna() -> Any:
    """The library.

    Raises:
        PalmError: it is missing.
    """
    try:
        import optuna as library
    except ImportError:
        raise PalmError(NEEDS) from None
    library.logging.set_verbosity(library.logging.WARNING)
    return library


class Study:
    """The trials of a sweep, in an SQLite file that Optuna's own tools read.

    The tree-structured Parzen estimator chooses, the median of earlier trials decides which are given up.

    Args:
        folder: of the file.
        space: what is tried.
        seed: of the choices; a study that goes on draws on from its number of trials.

    Raises:
        PalmError: optuna is missing.
    """

    def __init__(self, folder: Path, space: Space, seed: int) -> None:
        self._optuna, self._space = optuna(), space
        self.storage = f"sqlite:///{(folder / FILE).absolute()}"
        self._study = self._opened(seed)
        if known := len(self._study.trials):
            self._study = self._opened(seed + known)

    def _opened(self, seed: int) -> Any:
        return self._optuna.create_study(
            storage=self.storage,
            study_name=NAME,
            direction="maximize",
            load_if_exists=True,
            sampler=self._optuna.samplers.TPESampler(seed=seed),
            pruner=self._optuna.pruners.MedianPruner(),
        )

    def points(self, trials: int) -> Iterator[tuple[int, int, Values]]:
        """Number, id and point of every trial up to so many: those there are, then new ones.

        A trial that was under way when the sweep was killed is there, and keeps its point.
        """
        for number in range(trials):
            known = self._study.get_trials(deepcopy=False)
            if number < len(known) and known[number].state.is_finished():
                yield number, known[number]._trial_id, dict(known[number].params)
                continue
            under_way = number < len(known)
            trial = (
                self._optuna.trial.Trial(self._study, known[number]._trial_id)
                if under_way
                else self._study.ask()
            )
            point = {}
            for name, values in self._space.items():
                if isinstance(values, Choices):
                    # Optuna keeps no lists; as the words of a command line they mean the same.
                    words = [text(value) if isinstance(value, list) else value for value in values.values]
                    point[name] = trial.suggest_categorical(name, words)
                    continue
                low, high, step, log = values.low, values.high, values.step, values.log
                if isinstance(low, int) and isinstance(high, int):
                    point[name] = trial.suggest_int(name, low, high, step=int(step or 1), log=log)
                else:
                    point[name] = trial.suggest_float(name, low, high, step=step, log=log)
            yield number, trial._trial_id, point

    def tell(self, number: int, result: Result, score: float | None) -> None:
        """What came of a trial; nothing if it was told before."""
        states = self._optuna.trial.TrialState
        if score is not None and result["state"] == "done":
            self._study.tell(number, score, skip_if_finished=True)
        else:
            state = states.PRUNED if result["state"] == "pruned" else states.FAIL
            self._study.tell(number, state=state, skip_if_finished=True)
