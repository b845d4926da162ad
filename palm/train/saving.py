"""Callbacks that save finished targets, best models and checkpoints; none of them changes the training."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from palm.core.group import is_main_process
from palm.core.io import keep_foreign, numbered, remove_directory
from palm.core.logging import logger
from palm.train.callbacks import Completed, Evaluated, Event, Saved, Stopping
from palm.train.checkpoint import evaluator_of, save_checkpoint, training_facts
from palm.train.evaluation import model_of
from palm.train.folder import run_of
from palm.train.loop import Step, Training
from palm.train.model_paths import BEST, JOINT, LAST, ON_THE_WAY
from palm.train.saved_model import save_models
from palm.train.task import TaskState
from palm.train.task_model import TaskModel
from palm.train.train_step import check_finite

MOST_CHECKPOINTS = 10
"""Maximum number of checkpoints of a run without `save_every_n_steps`; more would slow down short epochs."""

BEST_KINDS = ("best", "best_overall")
"""Kinds of models that are saved because of an evaluation."""


class ModelSaver:
    """A callback that saves the models of targets, and all of them as one.

    A target is saved to `<task>/infer_model` when it finishes and to `<task>/best_model` at its best
    evaluation. Several targets are also saved together, to `model`: at the best evaluation of the whole run,
    or without one at its end.

    Args:
        training: the run; its weights are saved, averaged ones if it keeps averages.
        folder: the folder of the run.
        every: also save to `infer_model.step<N>` every so many steps of the task; 0 or less: never.
        keep: number of these intermediate models that are kept; 0 or less: all.
    """

    def __init__(self, training: Training, folder: Path, every: int = -1, keep: int = -1) -> None:
        self.training = training
        self.folder = folder
        self.run = training.config.to_dict()
        self.every = every
        self.keep = keep
        self.targets = [task for task in training.tasks if task.is_target]

    def __call__(self, event: Event) -> list[Saved]:
        if isinstance(event, Evaluated):
            return self._best(event)
        if isinstance(event, Completed):
            evaluator = evaluator_of(self.training)
            has_best = evaluator is not None and evaluator.overall.score > -math.inf
            is_joint = len(self.targets) > 1 and not has_best
            return [self.save(self.targets, Path(JOINT), "last_overall")] if is_joint else []
        if not isinstance(event, Step):
            return []
        return [saved for task in self.targets for saved in self._of_step(task, event)]

    def _best(self, event: Evaluated) -> list[Saved]:
        best = [task for task in self.targets if task.name in event.best]
        saved = [self.save([task], Path(task.name, BEST), "best") for task in best]
        evaluator = evaluator_of(self.training)
        assert evaluator is not None
        if evaluator.overall.step == event.step and len(self.targets) > 1:
            saved.append(self.save(self.targets, Path(JOINT), "best_overall"))
        return saved

    def _of_step(self, task: TaskState, event: Step) -> Iterator[Saved]:
        own = event.part_of(task)
        number = task.step
        is_due = self.every > 0 and number % self.every == 0 and number <= task.expected_steps
        if own is not None and is_due:
            yield self._logged(self.save([task], Path(task.name, f"{ON_THE_WAY}{number}"), "on_the_way"))
            keep_last(self.folder / task.name, ON_THE_WAY, number, self.keep)
        ends_early = self.training.reached_max_steps and not task.done
        if (own is not None and own.finished) or task.stopped_at == event.number or ends_early:
            logger.info("%s: train finished!", task.name)
            yield self._logged(self.save([task], Path(task.name, LAST), "target"))

    def _logged(self, saved: Saved) -> Saved:
        logger.info("%s: inference model saved at %s", saved.task, saved.path)
        return saved

    def save(self, tasks: Sequence[TaskState], path: Path, kind: str) -> Saved:
        """Save tasks as one model in their current state to a path in the folder, as a kind of `Saved`."""
        return save_model(self.training, tasks, self.folder / path, kind, self.run)


class PeriodicSaver:
    """A callback that saves every so many global steps and when a signal ends the run, once per step.

    Args:
        write: saves the state after a global step.
        every: save every so many steps; 0 or less: never.
        at_end: also save when the training ends between two of these steps.
        of: the task whose steps are counted; None: global steps.
    """

    def __init__(
        self,
        write: Callable[[int], list[Saved]],
        every: int,
        at_end: bool = False,
        of: TaskState | None = None,
    ) -> None:
        self.write = write
        self.every = every
        self.at_end = at_end
        self.of = of
        self._saved: int | None = None

    def __call__(self, event: Event) -> list[Saved]:
        if isinstance(event, Stopping) or (isinstance(event, Completed) and self.at_end):
            return self.save(event.step)
        if not isinstance(event, Step) or self.every <= 0:
            return []
        number = event.number if self.of is None else event.part_of(self.of) and self.of.step
        return self.save(event.number) if number and number % self.every == 0 else []

    def save(self, step: int) -> list[Saved]:
        """Save the state after this step, unless it has been saved."""
        if self._saved == step:
            return []
        self._saved = step
        return self.write(step)


def checkpoint_saver(training: Training, save_path: Path, run_id: str) -> PeriodicSaver:
    """Return a saver that writes checkpoints to `<save_path>/step_<N>`.

    Without `save_every_n_steps` it saves at the end of an epoch of the main task, at most `MOST_CHECKPOINTS`
    times, and keeps the newest of those that it wrote: earlier ones may have been asked for.

    Args:
        training: the run.
        save_path: the folder of the run.
        run_id: the id of the run, stored in the checkpoints.
    """
    every = training.config.settings.save_every_n_steps
    keep = training.config.settings.keep_last_n
    main = None
    if every is None:
        main = next(task for task in training.tasks if task.is_target)
        epochs = math.ceil(main.expected_steps / main.steps_per_epoch)
        every = main.steps_per_epoch * math.ceil(epochs / MOST_CHECKPOINTS)
        keep = keep if keep > 0 else 1

    written: set[Path] = set()

    def is_counted(folder: Path) -> bool:
        return folder in written if main is not None else run_of(folder) == run_id

    def write(step: int) -> list[Saved]:
        path = save_path / f"step_{step}"
        save_checkpoint(training, path, run_id)
        written.add(path)
        logger.info("checkpoint saved at %s", path)
        keep_last(save_path, "step_", step, keep, is_counted)
        return [Saved(step, "checkpoint", path)]

    return PeriodicSaver(write, every, of=main)


def save_model(
    training: Training,
    tasks: Sequence[TaskState],
    path: Path,
    kind: str = "target",
    run: Mapping[str, Any] | None = None,
) -> Saved:
    """Save tasks as one model in their current state, with averaged weights if the run keeps averages.

    Args:
        training: the run.
        tasks: the tasks.
        path: the folder; a model of palm there is replaced.
        kind: the kind of model (see `Saved`); one of `BEST_KINDS` marks it as best.
        run: the resolved configuration, stored with the model without other tasks.
    """
    names = [task.name for task in tasks]
    with training.averaged():
        models = [_checked_model(training, task) for task in tasks]
        if is_main_process():
            keep_foreign(path)
        save_models(
            models,
            models[0].backbone if len(models) == 1 else training.model.backbone,
            path,
            run and _of_tasks(run, names),
            {task.name: training_facts(training, task, kind in BEST_KINDS) for task in tasks},
            overwrite=True,
            shared=training.model,
        )
    return Saved(training.step, kind, path, names[0] if len(names) == 1 else None)


def _of_tasks(run: Mapping[str, Any], tasks: Sequence[str]) -> dict[str, Any]:
    """Return a resolved configuration without other tasks."""
    settings = {name: value for name, value in run["global"].items() if name != "task_instance"}
    return {**run, "global": settings, "tasks": {task: run["tasks"].get(task, {}) for task in tasks}}


def _checked_model(training: Training, task: TaskState) -> TaskModel:
    """Return the model of a task.

    Raises:
        TrainingError: it has values that are not finite.
    """
    model = model_of(training, task.task)
    parts = (("backbone", model.backbone), ("head", model.head))
    weights = {f"{part}.{name}": value for part, m in parts for name, value in m.named_parameters()}
    check_finite(weights, f"the model of {task.name!r} at global step {training.step}")
    return model


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
