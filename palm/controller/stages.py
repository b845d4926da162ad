"""The setting `stages`: consecutive parts of a run as separate runs, all resolved and checked in advance."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from palm.config.run import RunConfig, with_tasks
from palm.config.settings import OF_WHOLE_RUN, marked
from palm.controller.resolve import edited
from palm.core.component import did_you_mean, raise_any
from palm.core.errors import ConfigError, PalmError
from palm.core.group import (
    barrier,
    broadcast,
    is_main_process,
    report_missing_ranks,
)
from palm.core.io import copy_directory, is_sealed
from palm.core.logging import logger
from palm.train.build import build, open_data
from palm.train.callbacks import Callback, Completed, Event, Started
from palm.train.folder import RunFolder
from palm.train.loop import Training
from palm.train.model_paths import BEST, JOINT, LAST, STAGE_WEIGHTS, STAGES
from palm.train.result import TrainingResult, combined
from palm.train.run import write_configuration
from palm.train.saving import save_model
from palm.train.task import StepPlan

PRETRAINED = "pretrained"
"""Value of a stage's `start_from` for the weights that the whole run starts from."""

OWN = ("name", "tasks", "start_from", "reset")
"""Keys of a stage that are not ordinary settings."""

NAME = re.compile(r"\w[\w.+-]{0,80}")


@dataclass(frozen=True)
class Stage:
    """A part of a run.

    Args:
        label: its number and name; also the name of its folder.
        run: its configuration, with a folder of its own.
        given: its settings as given, with absolute paths.
    """

    label: str
    run: RunConfig
    given: Mapping[str, Any]


def stages_of(run: RunConfig, has_given_tasks: bool = False) -> list[Stage]:
    """Return the stages of a run, if any.

    Args:
        run: the run.
        has_given_tasks: True if tasks were built in Python.

    Raises:
        ConfigError: the problems of all stages, in one report.
    """
    entries = run.settings.stages
    if entries is None:
        return []
    place = run.placed("stages")
    problems = [f"{place}: {line}" for line in _general_problems(run, has_given_tasks)]
    names = [task.name for task in run.tasks]
    found: list[Stage] = []
    for number, entry in enumerate(entries, start=1):
        tasks, name = _tasks_and_name(entry, names)
        label = f"{number}-{name}"
        wrong = list(_stage_problems(run, entry, name, tasks, found))
        if not wrong:
            try:
                found.append(_stage(run, entry, label, tasks, found))
                build(found[-1].run)  # only to find problems
            except ConfigError as error:
                wrong = error.problems
        problems += [f"{place}: stage {label}: {line}" for line in wrong]
    trained = {task for stage in found for task in stage.run.targets}
    if not problems and (left := [task for task in run.targets if task not in trained]):
        problems.append(
            f"{place}: no stage trains {', '.join(left)}; leave it out of task_instance, or add one"
        )
    raise_any(problems)
    return found


def _general_problems(run: RunConfig, has_given_tasks: bool) -> Iterator[str]:
    """List problems of a configuration that do not allow stages at all."""
    if not run.settings.stages:
        yield "is empty; give a list of mappings, or leave it out"
    if has_given_tasks:
        yield "not supported with tasks built in Python; configure them in YAML"
    if own := [task.name for task in run.tasks if task.settings.lora]:
        yield (
            f"not supported with lora of {', '.join(own)}, because all tasks of a stage pass on one encoder; "
            "leave one of them out"
        )
    if run.settings.resume not in (None, "auto"):
        yield "a run in stages resumes from the newest checkpoint of its stage; set resume: auto"


def _tasks_and_name(entry: Mapping[str, Any], known: Sequence[str]) -> tuple[Any, str]:
    """Return the tasks of a stage (default: all), unchecked, and its name (default: their names)."""
    tasks = entry.get("tasks", known)
    tasks = [tasks] if isinstance(tasks, str) else tasks
    named = tasks if isinstance(tasks, list) else [tasks]
    return tasks, str(entry.get("name") or ("all" if tasks == known else "+".join(map(str, named))))


def _stage_problems(
    run: RunConfig, entry: Mapping[str, Any], name: str, tasks: Any, before: Sequence[Stage]
) -> Iterator[str]:
    """List problems of a stage's name, tasks and names of settings; its values are checked later."""
    known = [task.name for task in run.tasks]
    if not NAME.fullmatch(name):
        yield f"name should consist of letters, digits, '_', '-', '+' and '.', not {name!r}"
    if "name" in entry and _label(name, before) is not None:
        yield f"name {name!r} is used by an earlier stage; choose another"
    if not isinstance(tasks, list) or not tasks:
        yield f"tasks should be a list of names, not {tasks!r}"
    else:
        for task in tasks:
            if task not in known or tasks.count(task) > 1:
                hint = did_you_mean(str(task), known) or f"; known: {', '.join(known)}"
                yield f"tasks names {task!r}{' twice' if task in known else hint}"
    encoder = (setting for setting in run.backbone.settings if "dropout" not in setting)
    for setting in {*marked(OF_WHOLE_RUN), *encoder} & entry.keys():
        yield f"{setting} is a setting of the whole run; write it outside of stages"


def _label(name: Any, stages: Sequence[Stage]) -> str | None:
    """Return the label of the latest stage with this name or label."""
    labels = [stage.label for stage in stages]
    return next((each for each in reversed(labels) if name in (each, each.partition("-")[2])), None)


def _stage(
    run: RunConfig, entry: Mapping[str, Any], label: str, tasks: Sequence[str], before: Sequence[Stage]
) -> Stage:
    """Return a stage that has no problems so far."""
    assert run.settings.save_path is not None
    folder = run.settings.save_path / STAGES
    changes = {name: value for name, value in entry.items() if name not in OWN}
    changes |= dict.fromkeys(("stages", "effort", "resume", "overwrite"))
    changes["save_path"] = folder / label
    of_stage = with_tasks(run, tasks)
    if not of_stage.targets:
        changes.setdefault("target_tag", [1] * len(tasks))  # epochs are counted for a target
    start = _starting_weights(entry.get("start_from"), run, before, folder)
    given = dict(entry)
    if "start_from" in start and not start["start_from"].is_relative_to(folder):
        given["start_from"] = str(start["start_from"])  # elsewhere, relative paths would have another base
    if "reset" in entry:
        start["reset"] = entry["reset"]
    return Stage(label, edited(of_stage, {**changes, **start}), given)


def _starting_weights(given: Any, run: RunConfig, before: Sequence[Stage], folder: Path) -> dict[str, Any]:
    """Return the settings for the weights that a stage starts from, by default those of the previous one.

    Raises:
        ConfigError: there is neither such a stage nor such a folder.
    """
    if given == PRETRAINED or (given is None and not before):
        return {}
    label = before[-1].label if given is None else _label(given, before)
    if label is not None:
        return {"start_from": folder / label / STAGE_WEIGHTS, "reset": None}
    path = run.base / Path(str(given)).expanduser()
    if not path.is_dir():
        names = [PRETRAINED, *(stage.label.partition("-")[2] for stage in before)]
        raise ConfigError(
            f"start_from: no earlier stage and no folder is called {str(given)!r}"
            f"{did_you_mean(str(given), names)}"
        )
    return {"start_from": path.absolute(), "reset": None}


def steps_of(
    stages: Sequence[Stage], devices: int | None = None, place: str = "stages"
) -> dict[str, StepPlan]:
    """Return stage -> the plan of its steps; reads the data of all stages.

    Args:
        stages: the stages of a run.
        devices: as in `open_data`.
        place: the place of the setting, for messages.

    Raises:
        PalmError: data cannot be used.
    """
    plans = {}
    for stage in stages:
        try:
            _, plans[stage.label] = open_data(stage.run, build(stage.run), devices)
        except PalmError as error:
            error.args = (f"{place}: stage {stage.label}: {error}",)
            raise
    return plans


Train = Callable[[RunConfig, Sequence[Callback]], TrainingResult]
"""Trains a run with callbacks."""


def _saving(stage: Stage) -> Callback:
    """Return a callback that saves the stage's weights when it is complete, before it counts as finished."""
    trainings: list[Training] = []

    def save(event: Event) -> None:
        if isinstance(event, Started):
            trainings.append(event.training)
        if isinstance(event, Completed):
            save_model(trainings[-1], trainings[-1].tasks, stage.run.folder / STAGE_WEIGHTS)

    return save


def train_stages(
    run: RunConfig, folder: RunFolder, stages: Sequence[Stage], train: Train, callbacks: Sequence[Callback]
) -> TrainingResult:
    """Train the stages one after the other, each in a folder of its own by the rules of every run's folder.

    Args:
        run: the whole run.
        folder: the folder of the whole run.
        stages: resolved and checked.
        train: trains a stage, or returns its result if it is finished.
        callbacks: called with every event of every stage.

    Raises:
        StorageError: the folder holds another run, or a stage that has begun with other settings.
    """
    results: dict[str, TrainingResult] = {}
    with folder.locked() if is_main_process() else nullcontext():
        broadcast(folder.make_room)
        if is_main_process():
            write_configuration(run, folder.path)
        for number, stage in enumerate(stages, start=1):
            logger.info("stage %d of %d: %s", number, len(stages), stage.label)
            own = stage.run.with_settings(resume=folder.resume)
            result = results[stage.label] = train(own, [*callbacks, _saving(stage)])
            if result.is_interrupted:
                break
            if is_main_process():
                # If several stages train a target, its model is from the last of them.
                later = {task for each in stages[number:] for task in each.run.targets}
                final = [task for task in stage.run.targets if task not in later]
                every_target = {task for each in stages for task in each.run.targets}
                _publish(stage, folder.path, final, is_whole=every_target == {*final})
            with report_missing_ranks(f"after stage {stage.label}"):
                barrier()
        return combined(results)


def _publish(stage: Stage, folder: Path, targets: Sequence[str], is_whole: bool) -> None:
    """Copy the models of targets to their usual place, and if they are all of the run, the joint one."""
    sources = [stage.run.folder / task / kind for task in targets for kind in (LAST, BEST)]
    if is_whole:
        sources.append(stage.run.folder / JOINT)
    for source in sources:
        place = folder / source.relative_to(stage.run.folder)
        # A resumed run meets stages whose models have been published already.
        if is_sealed(source) and not is_sealed(place):
            copy_directory(source, place)
            logger.info("%s of stage %s is at %s", source.name, stage.label, place)
