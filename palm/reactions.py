"""What happens after an evaluation: the best models are saved, and tasks that gain nothing more end."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from palm.evaluation import Evaluator
from palm.logging import logger
from palm.observers import save_model


class BestSaver:
    """Saves a target's model whenever it is the best so far, and all targets' when the whole run is.

    Args:
        save_path: a target's best model goes to `<save_path>/<task>/best_model`; all targets of the best
            step of the run to `<save_path>/best/<task>`, unless that is decided by the only target.
        run: the resolved configuration, kept in each model.
    """

    def __init__(self, save_path: Path, run: dict[str, Any]) -> None:
        self.save_path, self.run = save_path, run

    def __call__(self, evaluator: Evaluator) -> None:
        training = evaluator.training
        targets = [task for task in training.tasks if task.is_target]
        for task in targets:
            if task.name in evaluator.best and evaluator.best[task.name].step == training.step:
                save_model(training, task, self.save_path / task.name / "best_model", self.run)
        only_target_decides = len(targets) == 1 and evaluator.best_by == [targets[0].name]
        if not only_target_decides and evaluator.overall.step == training.step:
            for task in targets:
                save_model(training, task, self.save_path / "best" / task.name, self.run)


class EarlyStopping:
    """Declares targets finished that did not get better; the run ends when all targets are.

    A target that is finished stays in the draw, for it still helps the others, as after its last step.

    Args:
        patience: evaluations without a better one after which it is enough.
        together: look at the whole run instead of each target by itself, and end all at once.
    """

    def __init__(self, patience: int, together: bool = False) -> None:
        self.patience, self.together = patience, together

    def __call__(self, evaluator: Evaluator) -> None:
        for task in evaluator.training.tasks:
            best = evaluator.overall if self.together else evaluator.best.get(task.name)
            if task.is_target and not task.done and best is not None and best.waited >= self.patience:
                task.stopped_at = evaluator.training.step
                logger.info(
                    "%s: nothing better in %d evaluations since step %d; it counts as finished",
                    *(task.name, best.waited, best.step),
                )
