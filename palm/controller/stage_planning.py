"""The setting `stages`: parts of a run as runs of their own, each planned and checked before any begins."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from palm.balance import BALANCES
from palm.config import Config, read_config, settings_of
from palm.controller.build import Parts, build, open_data
from palm.controller.document import Document, document, that_count
from palm.controller.plan import Plan, place_of, plan
from palm.controller.saved_model import targets_of
from palm.controller.settings import OF_WHOLE_RUN, marked
from palm.core.checks import raise_any
from palm.core.errors import ConfigError, PalmError
from palm.core.registry import Registry, did_you_mean
from palm.engine.run.run_names import STAGE_WEIGHTS, STAGES
from palm.engine.training.planning import StepPlan
from palm.lr_sched import LR_SCHEDULES
from palm.mixing import MIXINGS
from palm.optimizer import OPTIMIZERS

PRETRAINED = "pretrained"
"""What `start_from` of a stage calls the weights that the whole run starts from."""

WHOLE_RUN = "{} is a setting of the whole run; write it outside of stages"

OWN = ("name", "tasks", "start_from", "reset")
"""What a stage says beside settings."""

NAME = re.compile(r"\w[\w.+-]{0,80}")

INSIDE = re.compile(r"^config(\['\w+'\])*: ")
"""How messages on a configuration that is no file begin."""


@dataclass(frozen=True)
class StagePlan:
    """A part of a run.

    Args:
        label: its number and name, and the name of its folder.
        tasks: that it trains.
        targets: those of them that get models.
        settings: its configuration, but for where it is saved.
        source: the label of the stage whose weights it starts from; None where its settings say that.
    """

    label: str
    tasks: Sequence[str]
    targets: Sequence[str]
    settings: Document
    source: str | None = None

    def about(self) -> dict[str, Any]:
        """Everything that its weights depend on, but for the data."""
        own = that_count(self.settings)
        if self.source is not None:
            del own["start_from"]  # its place does not matter
            own["from"] = self.source
        return own


def stages_of(config: Config, planned: Plan) -> list[StagePlan]:
    """The stages of a configuration; empty where it has none.

    Raises:
        ConfigError: everything that is wrong with any of them, in one report.
    """
    given = planned.settings.get("stages")
    if given is None:
        return []
    place = place_of(config, "stages")
    problems = list(_of_all(planned, place))
    of_whole_run = _settings_of_whole_run(planned)
    found: list[StagePlan] = []
    for number, entry in enumerate(given, start=1):
        tasks, name = _tasks_and_name(entry, config.tasks)
        label = f"{number}-{name}"
        wrong = list(_problems(entry, name, tasks, config.tasks, found))
        wrong += [WHOLE_RUN.format(setting) for setting in entry if setting in of_whole_run]
        if not wrong:
            try:
                found.append(_stage(config, planned, entry, label, tasks, found))
                _parts_of(found[-1])  # built as its run will be, and thrown away
            except ConfigError as error:
                wrong = [INSIDE.sub("", line) for line in error.problems]
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
    """Return the tasks of a stage, unchecked, by default all; and its name, by default theirs."""
    tasks = entry.get("tasks", known)
    tasks = [tasks] if isinstance(tasks, str) else tasks
    named = tasks if isinstance(tasks, list) else [tasks]
    return tasks, str(entry.get("name") or ("all" if tasks == known else "+".join(map(str, named))))


def _parts_of(stage: StagePlan) -> Parts:
    config = read_config(stage.settings, argv=[])
    return build(plan(config, for_train=True), config.place)


def absolute_stages(config: Config, planned: Plan, stages: Sequence[StagePlan]) -> list[dict[str, Any]]:
    """The setting as it counts from any folder."""
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
    """Stage -> the plan of its steps; reads their data.

    Args:
        stages: of a run.
        devices: as in `open_data`.
        place: of the setting, for messages.

    Raises:
        PalmError: data that cannot be used.
    """
    plans = {}
    for stage in stages:
        try:
            plans[stage.label] = open_data(_parts_of(stage), devices)
        except PalmError as error:
            error.args = (f"{place}: stage {stage.label}: {error}",)
            raise
    return plans


def _of_all(planned: Plan, place: str) -> Iterator[str]:
    """Problems that rule stages out altogether."""
    if not planned.settings["stages"]:
        yield f"{place}: names none; give a list of mappings, or leave it out"
    if planned.given:
        yield f"{place}: tasks built in Python have no configuration that a stage could change; write YAML"
    for setting in ("private_layers", "lora"):
        if own := [task.name for task in planned.tasks if task.task.get(setting) not in (None, 0)]:
            yield (
                f"{place}: {setting} of {', '.join(own)}: a stage hands on one encoder for all tasks; "
                "leave one of them out"
            )
    if planned.settings.get("resume") not in (None, "auto"):
        yield "resume: a run in stages goes on from the newest checkpoint of its stage; set resume: auto"


def _problems(
    entry: Mapping[str, Any], name: str, tasks: Any, known: Sequence[str], before: Sequence[StagePlan]
) -> Iterator[str]:
    """Problems of a stage's name, tasks and places; its settings are checked when it is planned."""
    if not NAME.fullmatch(name):
        yield f"name should be of letters, digits, '_', '-', '+' and '.', not {name!r}"
    if "name" in entry and _label(name, before) is not None:
        yield f"name {name!r} is that of an earlier stage; give it another"
    if not isinstance(tasks, list) or not tasks:
        yield f"tasks should be a list of names, not {tasks!r}"
    else:
        for task in tasks:
            if task not in known or tasks.count(task) > 1:
                hint = did_you_mean(str(task), known) or f"; there are {', '.join(known)}"
                yield f"tasks names {task!r}{' twice' if task in known else hint}"


def _label(name: Any, stages: Sequence[StagePlan]) -> str | None:
    """The label of the latest stage of a name, or label."""
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
    """The plan of a stage that has nothing wrong with it so far."""
    changes = {name: value for name, value in entry.items() if name not in OWN}
    if not {*tasks} & {*targets_of(planned.settings)}:
        changes.setdefault("target_tag", [1] * len(tasks))  # somebody's epochs have to be counted
    folder = planned.settings["save_path"] / STAGES
    changes["save_path"] = folder / label
    source, start = _start(entry.get("start_from"), config, before, folder)
    if "reset" in entry:
        start["reset"] = entry["reset"]
    settings = _document(config, planned, tasks, {**changes, **start})
    return StagePlan(label, tasks, targets_of(settings["global"]), settings, source)


def _document(config: Config, planned: Plan, tasks: Sequence[str], changes: Mapping[str, Any]) -> Document:
    """The configuration of some of the tasks with changes, which count for all of them."""
    settings = document(config, planned, tasks, **changes)
    run = settings["global"]
    # A task's own value goes before that of the whole run, and a change of the stage counts for all tasks.
    for name in changes:
        for task in tasks:
            run.pop(f"{task}.{name}", None)
    components: dict[str, tuple[Registry[Any], Mapping[str, Any]]] = {
        "optimizer": (OPTIMIZERS, planned.optimizer[1]),
        "lr_scheduler": (LR_SCHEDULES, planned.schedule),
        "mixing": (MIXINGS, planned.mixing[1]),
        "balance": (BALANCES, {} if planned.balance is None else planned.balance[1]),
    }
    for setting, (registry, arguments) in components.items():
        if changes.get(setting) is not None and changes[setting] in registry:
            taken = settings_of(registry[changes[setting]])
            for name in arguments.keys() - taken.keys() - changes.keys():
                run.pop(name, None)  # of the one that the stage replaces
    return settings


def _start(
    given: Any, config: Config, before: Sequence[StagePlan], folder: Path
) -> tuple[str | None, dict[str, Any]]:
    """The stage whose weights a stage starts from, where it is one; and the setting for it.

    Raises:
        ConfigError: there is no such stage, and no such folder.
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
