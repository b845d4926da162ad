"""Optuna as a source of trials."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from palm.core.errors import PalmError, StorageError
from palm.core.files.door import is_plain
from palm.core.files.fs import is_temporary, mark_written
from palm.experiments.grid.folder import word_of
from palm.experiments.grid.pool import Result
from palm.experiments.search.space import Range, Space, Values

STUDY = "palm"
STUDY_FILE = "study.db"


def optuna() -> Any:
    """Import the library.

    Raises:
        PalmError: it is missing.
    """
    try:
        import optuna as library
    except ImportError:
        raise PalmError("a sweep with --trials needs optuna: pip install 'palm-torch[sweep]'") from None
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
        StorageError: the folder has a file of that name that is not palm's.
    """

    def __init__(self, folder: Path, space: Space, seed: int) -> None:
        self._optuna = optuna()
        self._space = space
        file = folder / STUDY_FILE
        if "?" in str(file.absolute()):  # the rest would be options of the database
            raise StorageError(f"{folder}: the folder of a study cannot have '?' in its name; give another")
        if file.exists() and (not is_plain(file) or not is_temporary(file)):
            raise StorageError(
                f"{file} was not made by palm sweep; move it elsewhere, or give another folder"
            )
        mark_written(file)
        self.storage = f"sqlite:///{(folder / STUDY_FILE).absolute()}"
        self._study = self._opened(seed)
        if known := len(self._study.trials):
            self._study = self._opened(seed + known)

    def _opened(self, seed: int) -> Any:
        return self._optuna.create_study(
            storage=self.storage,
            study_name=STUDY,
            direction="maximize",
            load_if_exists=True,
            sampler=self._optuna.samplers.TPESampler(seed=seed),
            pruner=self._optuna.pruners.MedianPruner(),
        )

    def points(self, trials: int) -> Iterator[tuple[int, int, Values]]:
        """Yield number, id and point of every trial up to so many: known ones first, then new ones.

        A trial that was under way when the sweep was killed keeps its point.
        """
        for number in range(trials):
            known = self._study.get_trials(deepcopy=False)
            if number >= len(known):
                trial = self._study.ask()
            elif known[number].state.is_finished():
                yield number, known[number]._trial_id, dict(known[number].params)
                continue
            else:
                trial = self._optuna.trial.Trial(self._study, known[number]._trial_id)
            point = {name: _suggested(trial, name, values) for name, values in self._space.items()}
            yield number, trial._trial_id, point

    def tell(self, number: int, result: Result, score: float | None) -> None:
        """Report the result of a trial, unless that was done."""
        states = self._optuna.trial.TrialState
        if score is not None and result["state"] == "done":
            self._study.tell(number, score, skip_if_finished=True)
        else:
            state = states.PRUNED if result["state"] == "pruned" else states.FAIL
            self._study.tell(number, state=state, skip_if_finished=True)


def _suggested(trial: Any, name: str, values: Sequence[Any] | Range) -> Any:
    if not isinstance(values, Range):
        # Optuna keeps no lists; as the words of a command line they mean the same.
        return trial.suggest_categorical(
            name, [word_of(value) if isinstance(value, list) else value for value in values]
        )
    if isinstance(values.low, int) and isinstance(values.high, int):
        step = int(values.step or 1)
        return trial.suggest_int(name, values.low, values.high, step=step, log=values.log)
    return trial.suggest_float(name, values.low, values.high, step=values.step, log=values.log)
