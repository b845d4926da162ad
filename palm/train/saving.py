"""Observers that save finished targets, best models and checkpoints; none of them changes the training."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from palm.core.files.atomic_dir import link_equal_weights, move_foreign_aside, remove_directory
from palm.core.files.fs import numbered
from palm.core.logging import logger
from palm.parallel.group import is_main_process
from palm.train.checkpoint import save_checkpoint
from palm.train.evaluation import EarlyStopping, Evaluator, model_of
from palm.train.events import Completed, Evaluated, Event, Observer, Saved
from palm.train.finite import check_finite
from palm.train.loop import Step, Training
from palm.train.model_paths import BEST, BEST_OF_RUN, LAST, ON_THE_WAY
from palm.train.task import Task
from palm.train.training_metadata import training_facts

BEST_KINDS = ("best", "best_overall")
"""Kinds of models that are saved because of an evaluation."""


@dataclass(eq=False)
class TargetSaver:
    """An observer that saves a target's inference model when it finishes and, if requested, at intervals.

    Args:
        training: the run; its weights are saved, averaged ones if it keeps averages.
        save_path: models are saved at `<save_path>/<task>/infer_model`.
        every: also save to `infer_model.step<N>` every so many steps of the task; 0 or less: never.
        run: the resolved configuration, stored with each model.
        keep: number of intermediate models that are kept; 0 or less: all.
    """

    training: Training
    save_path: Path
    every: int
    run: dict[str, Any]
    keep: int = -1

    def __call__(self, event: Event) -> list[Saved]:
        if not isinstance(event, Step):
            return []
        saved = []
        for task in self.training.tasks:
            own = event.part_of(task)
            number = task.step
            if not task.is_target:
                continue
            is_due = self.every > 0 and number % self.every == 0 and number <= task.expected_steps
            if own is not None and is_due:
                saved.append(self._save(task, f"{ON_THE_WAY}{number}", "on_the_way"))
                keep_last(self.save_path / task.name, ON_THE_WAY, number, self.keep)
            ends_early = self.training.reached_max_steps and not task.done
            if (own is not None and own.finished) or task.stopped_at == event.number or ends_early:
                logger.info("%s: train finished!", task.name)
                saved.append(self._save(task, LAST, "target"))
        return saved

    def _save(self, task: Task, folder: str, kind: str) -> Saved:
        path = self.save_path / task.name / folder
        saved = save_model(self.training, task, path, kind, self.run)
        logger.info("%s: inference model saved at %s", task.name, path)
        return saved


def save_model(
    training: Training, task: Task, path: Path, kind: str = "target", run: dict[str, Any] | None = None
) -> Saved:
    """Save a task's model in its current state, with averaged weights if the run keeps averages.

    Args:
        training: the run.
        task: the task.
        path: the folder; a model of palm there is replaced.
        kind: the kind of model (see `Saved`); one of `BEST_KINDS` marks it as best.
        run: the resolved configuration, stored with the model without its other tasks.
    """
    if run:
        settings = {name: value for name, value in run["global"].items() if name != "task_instance"}
        run = {**run, "global": settings, "tasks": {task.name: run["tasks"].get(task.name, {})}}
    with training.averaged():
        model = model_of(training, task)
        is_frozen = not any(parameter.requires_grad for parameter in model.backbone.parameters())
        if model.adapted is not None and is_frozen and run:
            model.adapted = replace(model.adapted, base=run["global"].get("pretrain_path"))
        parts = (("backbone", model.backbone), ("head", model.head))
        weights = {f"{part}.{name}": value for part, m in parts for name, value in m.named_parameters()}
        check_finite(weights, f"the model of {task.name!r} at global step {training.step}")
        if is_main_process():
            move_foreign_aside(path)
        model.save(path, run, training_facts(training, task, kind in BEST_KINDS), overwrite=True)
        if is_main_process():  # the same weights may be best of the task, best of the run, and last
            run_folder = path.parent.parent
            own = [run_folder / task.name / kind for kind in (BEST, LAST)]
            link_equal_weights(path, [*own, run_folder / BEST_OF_RUN / task.name])
    return Saved(training.step, kind, path, task.name)


class PeriodicSaver:
    """An observer that saves every so many global steps and on request, at most once per step.

    Args:
        write: saves the state after a global step.
        every: save every so many global steps; 0 or less: never.
        at_end: also save when the training ends between two of these steps.
    """

    def __init__(self, write: Callable[[int], list[Saved]], every: int, at_end: bool = False) -> None:
        self.write = write
        self.every = every
        self.at_end = at_end
        self._saved: int | None = None

    def __call__(self, event: Event) -> list[Saved]:
        if isinstance(event, Completed) and self.at_end:
            return self.save(event.step)
        if isinstance(event, Step) and self.every > 0 and event.number % self.every == 0:
            return self.save(event.number)
        return []

    def save(self, step: int) -> list[Saved]:
        """Save the state after this step, unless it has been saved."""
        if self._saved == step:
            return []
        self._saved = step
        return self.write(step)


def checkpoint_saver(
    training: Training, save_path: Path, every: int, keep: int = -1, run_id: str | None = None
) -> PeriodicSaver:
    """Return a saver that writes checkpoints to `<save_path>/step_<N>`.

    Args:
        training: the run.
        save_path: the folder of the run.
        every: save every so many global steps; 0 or less: never.
        keep: number of checkpoints that are kept; 0 or less: all.
        run_id: the id of the run, stored in the checkpoints.
    """

    def write(step: int) -> list[Saved]:
        path = save_path / f"step_{step}"
        save_checkpoint(training, path, run_id)
        logger.info("checkpoint saved at %s", path)
        keep_last(save_path, "step_", step, keep)
        return [Saved(step, "checkpoint", path)]

    return PeriodicSaver(write, every)


class BestSaver:
    """An observer that saves a target's best model, and the models of all targets at the run's best step.

    Args:
        evaluator: keeps the best evaluations.
        save_path: a target's best model is saved at `<save_path>/<task>/best_model`, those of the run's best
            step at `<save_path>/best/<task>`. The latter are omitted if the only target decides both.
        run: the resolved configuration, stored with each model.
    """

    def __init__(self, evaluator: Evaluator, save_path: Path, run: dict[str, Any]) -> None:
        self.evaluator = evaluator
        self.save_path = save_path
        self.run = run

    def __call__(self, event: Event) -> list[Saved]:
        if not isinstance(event, Evaluated):
            return []
        training = self.evaluator.training
        targets = [task for task in training.tasks if task.is_target]
        best = [
            (task, self.save_path / task.name / BEST, "best") for task in targets if task.name in event.best
        ]
        only_target_decides = len(targets) == 1 and self.evaluator.best_by == [targets[0].name]
        if not only_target_decides and self.evaluator.overall.step == event.step:
            best += [(task, self.save_path / BEST_OF_RUN / task.name, "best_overall") for task in targets]
        return [save_model(training, task, path, kind, self.run) for task, path, kind in best]


def evaluation_observers(
    evaluator: Evaluator | None, folder: Path | None, run: dict[str, Any], patience: int, stop_by: str
) -> list[Observer]:
    """Return the evaluator and the observers that act on its evaluations, in order; [] without an evaluator.

    Args:
        evaluator: the evaluator of the run.
        folder: the folder of the run, for best models; None: save none.
        run: the resolved configuration, stored with each model.
        patience: as for `EarlyStopping`; 0 or less: never stop early.
        stop_by: 'task' to judge each target by its own scores, 'all' to stop all targets together.
    """
    if evaluator is None:
        return []
    found: list[Observer] = [evaluator]
    if folder is not None:
        found.append(BestSaver(evaluator, folder, run))
    if patience > 0:
        found.append(EarlyStopping(evaluator, patience, together=stop_by == "all"))
    return found


def keep_last(folder: Path, start: str, last: int, count: int) -> None:
    """Remove the oldest directories `<start><number>`, keeping the newest `count`.

    Args:
        folder: the parent folder.
        start: the prefix of their names.
        last: the number of the newest one; higher numbers belong to another run and are kept.
        count: how many to keep; 0 or less: all.
    """
    if not is_main_process():
        return
    older = sorted(number for number in numbered(folder, start) if number <= last)
    for number in older[:-count] if count > 0 else ():
        remove_directory(folder / f"{start}{number}")
