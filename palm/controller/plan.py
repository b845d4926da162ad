"""Components as a configuration names them, with arguments; checked in one report before building."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from types import MappingProxyType
from typing import Any, TypeVar

from palm.backbone import BACKBONES, Backbone
from palm.backbone.encoder import Encoder
from palm.backbone.low_rank import FROM
from palm.balance import BALANCES, Balance
from palm.config import Config, settings_of
from palm.config.config import AUTO
from palm.config.schema import Consumer
from palm.controller.chosen_rows import RowSettings, choose_rows
from palm.controller.components import REGISTRIES
from palm.controller.settings import RunSettings, TaskParts, setting_problems
from palm.core.errors import PalmError
from palm.core.registry import Registry
from palm.engine.run.run_names import name_problem
from palm.engine.training.task import NO_BATCH_SIZE, Task
from palm.lr_sched import HORIZON, LR_SCHEDULES
from palm.mixing import MIXINGS, Mixing
from palm.optimizer import OPTIMIZERS, Optimizer, ParameterGroups
from palm.paradigm import HEADS, Head
from palm.reader import READERS, Reader
from palm.reader.tables.files import absence, is_data
from palm.reader.text.labels import Labels

T = TypeVar("T")


def _all_of(*settings: str) -> list[Consumer]:
    """List the components that settings can name."""
    return [REGISTRIES[setting][name] for setting in settings for name in REGISTRIES[setting]]


HELP: dict[str, list[Consumer]] = {
    "global settings": [
        RunSettings,
        *_all_of("optimizer"),
        ParameterGroups,
        *_all_of("lr_scheduler", "mixing", "balance"),
    ],
    "task settings": [TaskParts, RowSettings, Task],
    "readers": _all_of("reader"),
    "paradigms": _all_of("paradigm"),
    "backbones": _all_of("backbone"),
}


TASK_PARTS = ("name", "reader", "head", "mix_ratio", "is_target")
"""Parameters of `Task` that come from the assembly, not from a configuration."""


NO_SETTINGS: dict[Consumer, Collection[str]] = {
    Task: TASK_PARTS,
    **{LR_SCHEDULES[name]: HORIZON for name in LR_SCHEDULES},
}
"""Parameters of components that no configuration sets; help and documentation leave them out."""


Chosen = dict[str | None, dict[str, list[str]]]
"""Task, or None for the whole run -> its components by the setting that names one of their kind."""


@dataclass(frozen=True)
class TaskPlan:
    """A task as a configuration describes it: classes and their arguments."""

    name: str
    reader: tuple[type[Reader], dict[str, Any]]
    head: tuple[type[Head], dict[str, Any]]
    task: dict[str, Any]
    rows: RowSettings = field(default_factory=RowSettings)

    def examples(self, path: Path) -> Iterator[Any]:
        """Read a file with labels as the task's reader does."""
        cls, arguments = self.reader
        return cls(**arguments).read(path, with_targets=True)

    @classmethod
    def of(cls, task: Task) -> TaskPlan:
        """Return the description from which a configuration would make `task`."""
        return cls(
            task.name,
            (type(task.reader), task.reader.settings),
            (type(task.head), task.head.settings),
            {name: getattr(task, name) for name in settings_of(Task) if name not in TASK_PARTS},
        )


@dataclass(frozen=True)
class Plan:
    """A configuration, read and checked, before anything is built; and the tasks that are built already."""

    settings: dict[str, Any]
    backbone: tuple[type[Backbone], dict[str, Any]]
    optimizer: tuple[type[Optimizer], dict[str, Any]]
    groups: dict[str, Any]
    schedule: dict[str, Any]
    mixing: tuple[type[Mixing], dict[str, Any]]
    balance: tuple[type[Balance], dict[str, Any]] | None
    tasks: list[TaskPlan]
    given: Sequence[Task]
    chosen: Mapping[Path, str]


def plan(config: Config, for_train: bool, given: Sequence[Task] = ()) -> Plan:
    """Ask the configuration for what every component accepts.

    Args:
        config: as read from files and command line.
        for_train: everything that training needs must be there; otherwise nothing must.
        given: tasks that were built in Python; they follow those of the configuration.

    Raises:
        ConfigError: all problems in one report, also settings that nobody takes.
    """
    components = _Components(config, required=for_train)
    component = components.component
    arguments = components.arguments
    encoder = config.value("backbone")
    if encoder is not None and str(encoder.value).lower() in BACKBONES:
        cls = BACKBONES[str(encoder.value)]
        config.adopt_aliases(cls.aliases)
        if for_train and issubclass(cls, Encoder):
            _check_computation(config)
    settings = {"task_instance": config.tasks, **arguments(RunSettings, None, provided=["task_instance"])}
    for name, wrong in setting_problems(settings, config.tasks):
        config.problem(f"{place_of(config, name)} {wrong}")
    backbone = component(BACKBONES, "backbone", settings.get("backbone"))
    optimizer = component(OPTIMIZERS, None, settings.get("optimizer", "adam"))
    mixing = component(MIXINGS, None, settings.get("mixing", "mix_ratio"))
    balance = None if settings.get("balance") is None else component(BALANCES, None, settings["balance"])
    groups = arguments(ParameterGroups, None)
    rule = settings.get("lr_scheduler", "linear_warmup_decay")
    schedule_class = _known(LR_SCHEDULES, rule, config, None, components.has)
    # Its horizon is known when the steps are counted.
    schedule = {} if schedule_class is None else arguments(schedule_class, None, HORIZON)
    tasks = [components.task(name) for name in config.tasks]
    _keep_shared_rows(tasks)
    # From here on a task's files are those of its chosen rows.
    chosen = _chosen_rows(config, tasks, settings.get("save_path"), for_train)
    _check_names(config, [task.name for task in given])
    if for_train:
        _check_training(config, settings, everything := [*tasks, *map(TaskPlan.of, given)])
        _check_evaluation(config, settings, everything, mixing)
    config.finish(_owners(), components.has)
    return Plan(settings, backbone, optimizer, groups, schedule, mixing, balance, tasks, given, chosen)


class _Components:
    """The components that a configuration names, with the arguments that they take of it.

    Args:
        config: as read from files and command line.
        required: a setting without a default must be there.

    Attributes:
        has: scope -> setting -> the names of components that it chose.
    """

    def __init__(self, config: Config, required: bool) -> None:
        self.config = config
        self.arguments = partial(config.arguments, required=required)
        self.has: Chosen = {}

    def component(
        self,
        registry: Registry[Any],
        scope: str | None,
        name: str | None,
        fixed: Mapping[str, Any] = MappingProxyType({}),
    ) -> Any:
        """Return the class of this name with its arguments; `fixed` replaces those of the configuration."""
        cls = _known(registry, name, self.config, scope, self.has)
        if cls is None:
            return None
        fixed = {setting: value for setting, value in fixed.items() if setting in settings_of(cls)}
        return cls, {**self.arguments(cls, scope, fixed), **fixed}

    def task(self, name: str) -> TaskPlan:
        """Return the description of a task."""
        chosen = self.arguments(TaskParts, name, from_backbone=False)
        reader = self.component(READERS, name, chosen.get("reader"))
        counted = _classes_of(reader, self.config, name)
        head = self.component(HEADS, name, chosen.get("paradigm"), counted)
        task = self.arguments(Task, name, TASK_PARTS, from_backbone=False)
        if FROM in (task.get("lora") or {}) and (given := self.config.value("lora", name)) is not None:
            task["lora"] = {**task["lora"], FROM: str(given.base / str(task["lora"][FROM]))}
        rows = RowSettings(**self.arguments(RowSettings, name, from_backbone=False))
        for setting, wrong in rows.problems():
            self.config.problem(f"{place_of(self.config, setting, name)} {wrong}")
        return TaskPlan(name, _as_wanted(reader, head, counted), head, task, rows)


def _chosen_rows(
    config: Config, tasks: Sequence[TaskPlan], folder: Path | None, for_train: bool
) -> Mapping[Path, str]:
    """Choose rows where settings want it; returns what the run's folder is to record."""
    if any(task.reader is None or list(task.rows.problems()) for task in tasks):
        return {}
    try:
        return choose_rows(tasks, folder, for_train)
    except PalmError as error:
        config.problem(str(error))
        return {}


def _keep_shared_rows(tasks: Sequence[TaskPlan]) -> None:
    """Let tasks that share rows keep those without a label of their own, unless the configuration says."""
    pairs = {task.name: task.task.get("share_rows_with") for task in tasks}
    for task in tasks:
        shares = pairs[task.name] is not None or task.name in pairs.values()
        if shares and task.reader is not None and task.reader[1].get("label_type") in (None, "class"):
            cls, arguments = task.reader
            if "missing_labels" in settings_of(cls):
                # A row that lacks this task's label trains the others; leaving it out would shift theirs.
                arguments.setdefault("missing_labels", True)


def _classes_of(reader: Any, config: Config, task: str) -> dict[str, int]:
    """Numbers of labels that the configuration does not tell but the reader's labels do."""
    settings = {} if reader is None else reader[1]
    counted = {}
    if columns := settings.get("label_columns"):
        counted["n_classes"] = len(columns)
    for number, names in (("n_classes", "label_map"), ("n_span_classes", "span_label_map")):
        if number in settings or config.place(names, task) is None:
            continue
        counted[number] = 2  # where labels are wrong, which is reported, so that its absence is not too
        try:
            if settings.get(names) is not None:
                counted[number] = max(Labels(None, settings[names]).names) + 1
        except PalmError as error:
            config.problem(f"task {task!r}: {error}")
    return counted


def _as_wanted(reader: Any, head: Any, counted: Mapping[str, int]) -> Any:
    """The reader with the settings that the paradigm wants of it, where the configuration says nothing."""
    if reader is None or head is None:
        return reader
    cls, arguments = reader
    wanted = {**getattr(head[0], "reader_settings", {}), **counted}
    return cls, {name: wanted[name] for name in wanted if name in settings_of(cls)} | arguments


def _owners() -> dict[str, dict[str, list[str]]]:
    """Setting -> the components of palm that take it, by the setting that names one of their kind."""
    found: dict[str, dict[str, list[str]]] = {}
    for registry in REGISTRIES.values():
        for name in registry:
            for parameter in settings_of(registry[name]).values():
                for spelling in parameter.spellings:
                    found.setdefault(spelling, {}).setdefault(registry.setting, []).append(name)
    return found


def _known(
    registry: Registry[T], name: str | None, config: Config, scope: str | None, has: Chosen
) -> T | None:
    """Return the class of this name and enter it into `has`; or None, with a line of the report."""
    # A name that lacks is reported, and 'auto' stays where nobody has asked the directory, as in prediction:
    # either way it is not known who could use other settings.
    if name is None or (name == AUTO and registry is BACKBONES):
        config.excuse(scope)
        return None
    key = registry.setting
    owner = scope if scope in config.tasks else None
    try:
        found = registry[name]
    except PalmError as error:
        hint = "; or auto, with pretrain_path" if registry is BACKBONES else ""
        config.problem(f"{place_of(config, key, owner)}: {error}{hint}")
        config.excuse(scope)
        return None
    for whose in {owner, None}:
        names = has.setdefault(whose, {}).setdefault(key, [])
        names += {registry.name_of(found)} - {*names}
    return found


def place_of(config: Config, name: str, scope: str | None = None) -> str:
    """The beginning of a message about a setting: its place and its name."""
    setting = config.value(name, scope)
    return name if setting is None else setting.place(name)


def _check_names(config: Config, given: Sequence[str]) -> None:
    """Check the names of tasks, those that were built in Python among them."""
    for name in {*given} & {*config.tasks}:
        config.problem(f"there are two tasks {name!r}, one of the configuration and one built in Python")
    for name in (*config.tasks, *given):
        if (problem := name_problem(name)) is not None:
            config.problem(problem)


def _check_computation(config: Config) -> None:
    """Check that settings of others in the encoder's JSON do not change what palm's encoders compute."""
    from palm.pretrained.configs import COMPUTED_AS, computation_problems

    found = {name: config.value(name, "backbone") for name in COMPUTED_AS if config.place(name, "backbone")}
    wrong = computation_problems({name: setting.value for name, setting in found.items() if setting})
    for name, line in wrong.items():
        config.problem(f"{config.place(name, 'backbone')}: {line}")


def _check_training(config: Config, settings: Mapping[str, Any], tasks: list[TaskPlan]) -> None:
    lacks = partial(_lacks, config)
    if lacks(settings, "num_epochs") and lacks(settings, "max_steps"):
        config.missing("num_epochs", "passes over the main task's training data; or set max_steps")
    _check_resume(config, settings.get("resume"))
    for task in tasks:
        own = partial(lacks, task.task, scope=task.name)
        if own("batch_size") and own("max_tokens_per_batch"):
            config.problem(f"task {task.name!r}: {NO_BATCH_SIZE}")
        if own("train_file"):
            config.problem(
                f"task {task.name!r} has no train_file; name its training data in {task.name}.yaml"
            )
        for name in ("train_file", "dev_file"):
            path = task.task.get(name)
            if path is not None and not is_data(path):
                config.problem(f"{place_of(config, name, task.name)}: {absence(path)}: {path}")


def _check_resume(config: Config, resume: Any) -> None:
    is_path = resume not in (None, "auto") and config.place("stages") is None  # which take no path
    if is_path and not any((base / str(resume)).is_dir() for base in (config.base, Path())):
        config.problem(
            f"{place_of(config, 'resume')} names {resume!r}, and there is no such folder; name a checkpoint "
            "(SAVE_PATH/step_N), or auto for the newest of this run"
        )


def _lacks(config: Config, values: Mapping[str, Any], name: str, scope: str | None = None) -> bool:
    """Tell whether a setting has no value; a wrong one, which is reported, is left out of `values`."""
    return values.get(name) is None and (name in values or config.place(name, scope) is None)


def _check_evaluation(config: Config, settings: dict[str, Any], tasks: list[TaskPlan], mixing: Any) -> None:
    """Check the requirements of best models and early stopping."""
    evaluated = [task.name for task in tasks if task.task.get("dev_file") is not None]
    strange = [name for name in settings.get("best_by") or () if name not in evaluated]
    if strange:
        known = ", ".join(evaluated) or "none"
        config.problem(
            f"{place_of(config, 'best_by')} names {', '.join(strange)}; tasks with a dev_file: {known}"
        )
    if settings.get("early_stopping_patience", -1) > 0:
        place = place_of(config, "early_stopping_patience")
        if not evaluated:
            config.problem(f"{place} needs a task with a dev_file")
        elif settings.get("eval_every_epoch") is False and settings.get("eval_every_n_steps", -1) <= 0:
            config.problem(
                f"{place} waits for evaluations, and there is none before the end; "
                "set eval_every_n_steps, or eval_every_epoch: True"
            )
    if mixing is not None and mixing[0].follows_scores and not evaluated:
        name = settings["mixing"]
        config.problem(f"{place_of(config, 'mixing')}: {name} follows dev scores; give a task a dev_file")
