"""A callback that reports the dev scores of a trial to Optuna, and prunes it."""

from __future__ import annotations

import optuna

from palm.core.logging import logger
from palm.engine.training.events import Evaluated, Event, Started
from palm.experiments.grid.worker import EndedEarly, dev_scores
from palm.experiments.search.study import STUDY


class Pruning:
    """A callback that reports every evaluation to the study, in the process of the trial.

    Args:
        storage: the study's address.
        trial: the id of the trial.

    Raises:
        EndedEarly: the study's pruner gives the trial up.
    """

    def __init__(self, storage: str, trial: int) -> None:
        study = optuna.load_study(study_name=STUDY, storage=storage, pruner=optuna.pruners.MedianPruner())
        self._trial = optuna.trial.Trial(study, trial)

    def __call__(self, event: Event) -> None:
        if isinstance(event, Started):
            self._training = event.training
        elif isinstance(event, Evaluated):
            step, score = dev_scores(self._training)[-1]
            self._trial.report(score, step)
            if self._trial.should_prune():
                logger.info("step %d: a dev score of %.4f is below the median of other trials", step, score)
                raise EndedEarly
