"""Callbacks that save finished targets, best models and checkpoints; none of them changes the training."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from palm.core.io import keep_foreign, linked_copy, numbered, remove_directory
from palm.core.logging import logger
from palm.parallel.group import is_main_process
from palm.train.callbacks import Completed, Evaluated, Event, Saved
from palm.train.checkpoint import save_checkpoint, training_facts
from palm.train.evaluation import Evaluator, model_of
from palm.train.folder import run_of
from palm.train.loop import Step, Training
from palm.train.model_paths import BEST, BEST_OF_RUN, LAST, ON_THE_WAY
from palm.train.task import TaskState
from palm.train.train_step import check_finite

BEST_KINDS = ("best", "best_overall")
"""Kinds of models that are saved because of an evaluation."""


@dataclass(eq=False)
class ModelSaver:
    """Saves the models of a run; a model that was just saved elsewhere is copied with hard links.

    Args:
        training: the run; its weights are saved, averaged ones if it keeps averages.
        folder: the folder of the run.
        run: the resolved configuration, stored with each model.
    """

    training: Training
    folder: Path
    run: Mapping[str, Any]
    _last: dict[str, tuple[object, Path]] = field(default_factory=dict, init=False)

    def save(self, task: TaskState, path: Path, kind: str) -> Saved:
        """Save a task's model in its current state at a path in the folder; see `Saved` for its kind."""
        evaluator = self.training.attached("evaluator")
        # A model states the last evaluation, so one that was saved before it is another model.
        evaluations = evaluator.evaluations if isinstance(evaluator, Evaluator) else ()
        state = (self.training.step, len(evaluations))
        known, source = self._last.get(task.name, (None, path))
        if known != state:
            saved = save_model(self.training, task, self.folder / path, kind, self.run)
            self._last[task.name] = (state, self.folder / path)
            return saved
        if is_main_process():
            keep_foreign(self.folder / path)
            linked_copy(source, self.folder / path)
        return Saved(self.training.step, kind, self.folder / path, task.name)


@dataclass(eq=False)
class TargetSaver:
    """A callback that saves a target's model when it finishes and, if requested, at intervals.

    Args:
        models: saves them to `<task>/infer_model`.
        every: also save to `infer_model.step<N>` every so many steps of the task; 0 or less: never.
        keep: number of intermediate models that are kept; 0 or less: all.
    """

    models: ModelSaver
    every: int
    keep: int = -1

    def __call__(self, event: Event) -> list[Saved]:
        training = self.models.training
        saved = []
        for task in training.tasks if isinstance(event, Step) else ():
            assert isinstance(event, Step)
            own = event.part_of(task)
            number = task.step
            if not task.is_target:
                continue
            is_due = self.every > 0 and number % self.every == 0 and number <= task.expected_steps
            if own is not None and is_due:
                saved.append(self._save(task, f"{ON_THE_WAY}{number}", "on_the_way"))
                keep_last(self.models.folder / task.name, ON_THE_WAY, number, self.keep)
            ends_early = training.reached_max_steps and not task.done
            if (own is not None and own.finished) or task.stopped_at == event.number or ends_early:
                logger.info("%s: train finished!", task.name)
                saved.append(self._save(task, LAST, "target"))
        return saved

    def _save(self, task: TaskState, name: str, kind: str) -> Saved:
        saved = self.models.save(task, Path(task.name, name), kind)
        logger.info("%s: inference model saved at %s", task.name, saved.path)
        return saved


@dataclass(eq=False)
class BestSaver:
    """A callback that saves a target's best model, and the models of all targets at the run's best step.

    Args:
        models: saves a target's best model to `<task>/best_model`, and those of the run's best step to
            `best/<task>`; the latter are omitted if the only target decides both.
        evaluator: keeps the best evaluations.
    """

    models: ModelSaver
    evaluator: Evaluator

    def __call__(self, event: Event) -> list[Saved]:
        if not isinstance(event, Evaluated):
            return []
        targets = [task for task in self.models.training.tasks if task.is_target]
        best = [(task, Path(task.name, BEST), "best") for task in targets if task.name in event.best]
        only_target_decides = len(targets) == 1 and self.evaluator.best_by == [targets[0].name]
        if not only_target_decides and self.evaluator.overall.step == event.step:
            best += [(task, Path(BEST_OF_RUN, task.name), "best_overall") for task in targets]
        return [self.models.save(*each) for each in best]


class PeriodicSaver:
    """A callback that saves every so many global steps and on request, at most once per step.

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
        keep_last(save_path, "step_", step, keep, lambda folder: run_of(folder) == run_id)
        return [Saved(step, "checkpoint", path)]

    return PeriodicSaver(write, every)


def save_model(
    training: Training,
    task: TaskState,
    path: Path,
    kind: str = "target",
    run: Mapping[str, Any] | None = None,
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
        model = model_of(training, task.task)
        is_frozen = not any(parameter.requires_grad for parameter in model.backbone.parameters())
        if model.adapted is not None and is_frozen and run:
            model.adapted = replace(model.adapted, base=run["global"].get("pretrain_path"))
        parts = (("backbone", model.backbone), ("head", model.head))
        weights = {f"{part}.{name}": value for part, m in parts for name, value in m.named_parameters()}
        check_finite(weights, f"the model of {task.name!r} at global step {training.step}")
        if is_main_process():
            keep_foreign(path)
        model.save(path, run, training_facts(training, task, kind in BEST_KINDS), overwrite=True)
    return Saved(training.step, kind, path, task.name)


def keep_last(
    folder: Path,
    start: str,
    last: int,
    count: int,
    is_own: Callable[[Path], bool] = lambda _: True,
) -> None:
    """Remove the oldest directories `<start><number>`, keeping the newest `count`.

    Args:
        folder: the parent folder.
        start: the prefix of their names.
        last: the number of the newest one; higher numbers belong to another run and are kept.
        count: how many to keep; 0 or less: all.
        is_own: others are neither counted nor removed.
    """
    if not is_main_process():
        return
    own = (number for number, path in numbered(folder, start).items() if number <= last and is_own(path))
    for number in sorted(own)[:-count] if count > 0 else ():
        remove_directory(folder / f"{start}{number}")
