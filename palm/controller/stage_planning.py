"""The setting `stages`: consecutive parts of a run as separate runs, all planned and checked in advance."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from palm.config import Config, read_config, settings_of
from palm.controller.build import Parts, build, open_data
from palm.controller.components import REGISTRIES
from palm.controller.document import Document, document, result_settings
from palm.controller.plan import Plan, place_of, plan
from palm.controller.saved_model import targets_of
from palm.controller.settings import OF_WHOLE_RUN, marked
from palm.core.checks import raise_any
from palm.core.errors import ConfigError, PalmError
from palm.core.registry import did_you_mean
from palm.train.model_paths import STAGE_WEIGHTS, STAGES
from palm.train.planning import StepPlan

PRETRAINED = "pretrained"
"""Value of a stage's `start_from` for the weights that the whole run starts from."""

WHOLE_RUN = "{} is a setting of the whole run; write it outside of stages"

OWN = ("name", "tasks", "start_from", "reset")
"""Keys of a stage that are not ordinary settings."""

NAME = re.compile(r"\w[\w.+-]{0,80}")

MAPPING_PLACE = re.compile(r"^config(\['\w+'\])*: ")
"""Beginning of messages about a configuration that is a mapping instead of a file."""


@dataclass(frozen=True)
class StagePlan:
    """A part of a run.

    Args:
        label: its number and name; also the name of its folder.
        tasks: the tasks that it trains.
        targets: those of them that are targets.
        settings: its configuration.
        source: the label of the stage whose weights it starts from; None if its settings give the weights.
    """

    label: str
    tasks: Sequence[str]
    targets: Sequence[str]
    settings: Document
    source: str | None = None

    def identity(self) -> dict[str, Any]:
        """Return everything that its weights depend on, except the data."""
        own = result_settings(self.settings)
        if self.source is not None:
            del own["start_from"]  # the path does not matter
            own["from"] = self.source
        return own


def stages_of(config: Config, planned: Plan) -> list[StagePlan]:
    """Return the stages of a configuration, if any.

    Raises:
        ConfigError: the problems of all stages, in one report.
    """
    given = planned.settings.get("stages")
    if given is None:
        return []
    place = place_of(config, "stages")
    problems = list(_general_problems(planned, place))
    of_whole_run = _settings_of_whole_run(planned)
    found: list[StagePlan] = []
    for number, entry in enumerate(given, start=1):
        tasks, name = _tasks_and_name(entry, config.tasks)
        label = f"{number}-{name}"
        wrong = list(_stage_problems(entry, name, tasks, config.tasks, found))
        wrong += [WHOLE_RUN.format(setting) for setting in entry if setting in of_whole_run]
        if not wrong:
            try:
                found.append(_stage(config, planned, entry, label, tasks, found))
                _build_stage(found[-1])  # only to find problems
            except ConfigError as error:
                wrong = [MAPPING_PLACE.sub("", line) for line in error.problems]
        problems += [f"{place}: stage {label}: {line}" for line in wrong]
    trained = {task for stage in found for task in stage.targets}
    left = [task for task in targets_of(planned.settings) if task not in trained]
    if left and not problems:
        problems.append(
            f"{place}: no stage trains {', '.join(left)}; leave it out of task_instance, or add one"
        )
    raise_any(problems)
    return found


def _settings_of_whole_run(planned: Plan) -> set[str]:
    kind: Any = planned.backbone[0]
    encoder = (name for name in settings_of(kind) if "dropout" not in name)
    return {*marked(OF_WHOLE_RUN), *encoder}


def _tasks_and_name(entry: Mapping[str, Any], known: Sequence[str]) -> tuple[Any, str]:
    """Return the tasks of a stage (default: all), unchecked, and its name (default: their names)."""
    tasks = entry.get("tasks", known)
    tasks = [tasks] if isinstance(tasks, str) else tasks
    named = tasks if isinstance(tasks, list) else [tasks]
    return tasks, str(entry.get("name") or ("all" if tasks == known else "+".join(map(str, named))))


def _build_stage(stage: StagePlan) -> Parts:
    config = read_config(stage.settings, argv=[])
    return build(plan(config, for_train=True), config.place)


def absolute_stages(config: Config, planned: Plan, stages: Sequence[StagePlan]) -> list[dict[str, Any]]:
    """Return the setting `stages` with absolute paths."""
    names = {PRETRAINED, *(part for each in stages for part in (each.label, each.label.partition("-")[2]))}
    return [
        {**entry, "start_from": str((config.base / Path(given).expanduser()).absolute())}
        if (given := entry.get("start_from")) is not None and given not in names
        else dict(entry)
        for entry in planned.settings["stages"]
    ]


def steps_of(
    stages: Sequence[StagePlan], devices: int | None = None, place: str = "stages"
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
            plans[stage.label] = open_data(_build_stage(stage), devices)
        except PalmError as error:
            error.args = (f"{place}: stage {stage.label}: {error}",)
            raise
    return plans


def _general_problems(planned: Plan, place: str) -> Iterator[str]:
    """List problems of a configuration that do not allow stages at all."""
    if not planned.settings["stages"]:
        yield f"{place}: is empty; give a list of mappings, or leave it out"
    if planned.given:
        yield f"{place}: not supported with tasks built in Python; configure them in YAML"
    for setting in ("private_layers", "lora"):
        if own := [task.name for task in planned.tasks if task.task.get(setting) not in (None, 0)]:
            yield (
                f"{place}: not supported with {setting} of {', '.join(own)}, because all tasks of a stage "
                "pass on one encoder; leave one of them out"
            )
    if planned.settings.get("resume") not in (None, "auto"):
        yield "resume: a run in stages resumes from the newest checkpoint of its stage; set resume: auto"


def _stage_problems(
    entry: Mapping[str, Any], name: str, tasks: Any, known: Sequence[str], before: Sequence[StagePlan]
) -> Iterator[str]:
    """List problems of a stage's name and tasks; its settings are checked when it is planned."""
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


def _label(name: Any, stages: Sequence[StagePlan]) -> str | None:
    """Return the label of the latest stage with this name or label."""
    labels = [stage.label for stage in stages]
    return next((each for each in reversed(labels) if name in (each, each.partition("-")[2])), None)


def _stage(
    config: Config,
    planned: Plan,
    entry: Mapping[str, Any],
    label: str,
    tasks: Sequence[str],
    before: Sequence[StagePlan],
) -> StagePlan:
    """Plan a stage that has no problems so far."""
    changes = {name: value for name, value in entry.items() if name not in OWN}
    if not {*tasks} & {*targets_of(planned.settings)}:
        changes.setdefault("target_tag", [1] * len(tasks))  # epochs are counted for a target
    folder = planned.settings["save_path"] / STAGES
    changes["save_path"] = folder / label
    source, start = _starting_weights(entry.get("start_from"), config, before, folder)
    if "reset" in entry:
        start["reset"] = entry["reset"]
    settings = _document(config, planned, tasks, {**changes, **start})
    return StagePlan(label, tasks, targets_of(settings["global"]), settings, source)


def _document(config: Config, planned: Plan, tasks: Sequence[str], changes: Mapping[str, Any]) -> Document:
    """Return the configuration of some of the tasks with changes that apply to all of them."""
    settings = document(config, planned, tasks, **changes)
    run = settings["global"]
    # A task's own value would take precedence over the changed value of the whole run.
    for name in changes:
        for task in tasks:
            run.pop(f"{task}.{name}", None)
    components = {
        "optimizer": planned.optimizer[1],
        "lr_scheduler": planned.schedule,
        "mixing": planned.mixing[1],
        "balance": {} if planned.balance is None else planned.balance[1],
    }
    for setting, arguments in components.items():
        if changes.get(setting) is not None and changes[setting] in REGISTRIES[setting]:
            taken = settings_of(REGISTRIES[setting][changes[setting]])
            for name in arguments.keys() - taken.keys() - changes.keys():
                run.pop(name, None)  # settings of the component that the stage replaces
    return settings


def _starting_weights(
    given: Any, config: Config, before: Sequence[StagePlan], folder: Path
) -> tuple[str | None, dict[str, Any]]:
    """Return the stage whose weights a stage starts from, or None, and the settings for it.

    Raises:
        ConfigError: there is neither such a stage nor such a folder.
    """
    if given == PRETRAINED or (given is None and not before):
        return None, {}
    label = before[-1].label if given is None else _label(given, before)
    if label is not None:
        return label, {"start_from": folder / label / STAGE_WEIGHTS, "reset": None}
    path = config.base / Path(str(given)).expanduser()
    if not path.is_dir():
        names = [PRETRAINED, *(stage.label.partition("-")[2] for stage in before)]
        raise ConfigError(
            f"start_from: no earlier stage and no folder is called {str(given)!r}"
             f"{did_you_mean(str(given), names)}"
        )  # fmt: skip
    return None, {"start_from": path.absolute(), "reset": None}
