"""Components that a configuration selects, with their arguments; checked in one report before building."""

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
from palm.config import Config, settings_of
from palm.config.config import AUTO
from palm.config.schema import Consumer
from palm.controller.chosen_rows import RowSettings, choose_rows
from palm.controller.components import REGISTRIES
from palm.controller.settings import RunSettings, TaskParts, setting_problems
from palm.core.errors import PalmError
from palm.core.registry import Registry
from palm.lr_sched import HORIZON, LR_SCHEDULES
from palm.mixing import MIXINGS, Mixing
from palm.mixing.balance import BALANCES, Balance
from palm.optimizer import OPTIMIZERS, Optimizer, ParameterGroups
from palm.paradigm import HEADS, Head
from palm.reader import READERS, Reader
from palm.reader.tables.files import is_data, missing_reason
from palm.reader.text.labels import Labels
from palm.train.model_paths import name_problem
from palm.train.task import NO_BATCH_SIZE, Task

T = TypeVar("T")


def _all_of(*settings: str) -> list[Consumer]:
    """List the components that these settings can select."""
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
"""Parameters of components that configurations cannot set; left out of help and documentation."""


Chosen = dict[str | None, dict[str, list[str]]]
"""Task, or None for the whole run -> setting -> the components that it selects."""


@dataclass(frozen=True)
class TaskPlan:
    """A task in a configuration: classes and their arguments."""

    name: str
    reader: tuple[type[Reader], dict[str, Any]]
    head: tuple[type[Head], dict[str, Any]]
    task: dict[str, Any]
    rows: RowSettings = field(default_factory=RowSettings)

    def examples(self, path: Path) -> Iterator[Any]:
        """Read a file with labels by the task's reader."""
        cls, arguments = self.reader
        return cls(**arguments).read(path, with_targets=True)

    @classmethod
    def of(cls, task: Task) -> TaskPlan:
        """Return the plan of a task that was built in Python."""
        return cls(
            task.name,
            (type(task.reader), task.reader.settings),
            (type(task.head), task.head.settings),
            {name: getattr(task, name) for name in settings_of(Task) if name not in TASK_PARTS},
        )


@dataclass(frozen=True)
class Plan:
    """A configuration, read and checked but not built, and the tasks that were built in Python."""

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
    """Collect from the configuration the arguments of every component.

    Args:
        config: as read from files and command line.
        for_train: report missing settings that training needs.
        given: tasks that were built in Python; they follow those of the configuration.

    Raises:
        ConfigError: all problems in one report, including unused settings.
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
    # Its horizon is known once the steps are counted.
    schedule = {} if schedule_class is None else arguments(schedule_class, None, HORIZON)
    tasks = [components.task(name) for name in config.tasks]
    _keep_shared_rows(tasks)
    # From here on, a task's files are the files of its chosen rows.
    chosen = _chosen_rows(config, tasks, settings.get("save_path"), for_train)
    _check_names(config, [task.name for task in given])
    if for_train:
        _check_training(config, settings, everything := [*tasks, *map(TaskPlan.of, given)])
        _check_evaluation(config, settings, everything, mixing)
    config.finish(_owners(), components.has)
    return Plan(settings, backbone, optimizer, groups, schedule, mixing, balance, tasks, given, chosen)


class _Components:
    """The components that a configuration selects, with their arguments.

    Args:
        config: as read from files and command line.
        required: report missing settings that have no default.

    Attributes:
        has: scope -> setting -> names of the components that it selected.
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
        """Return the class of this name with its arguments; `fixed` replaces those in the configuration."""
        cls = _known(registry, name, self.config, scope, self.has)
        if cls is None:
            return None
        fixed = {setting: value for setting, value in fixed.items() if setting in settings_of(cls)}
        return cls, {**self.arguments(cls, scope, fixed), **fixed}

    def task(self, name: str) -> TaskPlan:
        """Return the plan of a task."""
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
        return TaskPlan(name, _with_defaults(reader, head, counted), head, task, rows)


def _chosen_rows(
    config: Config, tasks: Sequence[TaskPlan], folder: Path | None, for_train: bool
) -> Mapping[Path, str]:
    """Choose rows according to the settings; return the records for the run's folder."""
    if any(task.reader is None or list(task.rows.problems()) for task in tasks):
        return {}
    try:
        return choose_rows(tasks, folder, for_train)
    except PalmError as error:
        config.problem(str(error))
        return {}


def _keep_shared_rows(tasks: Sequence[TaskPlan]) -> None:
    """Make tasks that share rows keep rows without a label of their own, unless configured otherwise."""
    pairs = {task.name: task.task.get("share_rows_with") for task in tasks}
    for task in tasks:
        shares = pairs[task.name] is not None or task.name in pairs.values()
        if shares and task.reader is not None and task.reader[1].get("label_type") in (None, "class"):
            cls, arguments = task.reader
            if "missing_labels" in settings_of(cls):
                # Such a row trains the other tasks, and leaving it out would shift their rows.
                arguments.setdefault("missing_labels", True)


def _classes_of(reader: Any, config: Config, task: str) -> dict[str, int]:
    """Return numbers of classes that are not set, counted from the labels that the reader is given."""
    settings = {} if reader is None else reader[1]
    counted = {}
    if columns := settings.get("label_columns"):
        counted["n_classes"] = len(columns)
    for number, names in (("n_classes", "label_map"), ("n_span_classes", "span_label_map")):
        if number in settings or config.place(names, task) is None:
            continue
        counted[number] = 2  # a stand-in for wrong labels, so that it is not reported as missing too
        try:
            if settings.get(names) is not None:
                counted[number] = max(Labels(None, settings[names]).names) + 1
        except PalmError as error:
            config.problem(f"task {task!r}: {error}")
    return counted


def _with_defaults(reader: Any, head: Any, counted: Mapping[str, int]) -> Any:
    """Return the reader with the settings that its head needs, unless the configuration sets them."""
    if reader is None or head is None:
        return reader
    cls, arguments = reader
    defaults = {**getattr(head[0], "reader_settings", {}), **counted}
    return cls, {name: defaults[name] for name in defaults if name in settings_of(cls)} | arguments


def _owners() -> dict[str, dict[str, list[str]]]:
    """Return setting -> the registered components that accept it, by the setting that selects them."""
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
    """Return the class of this name and add it to `has`; None, with a problem in the report, if unknown."""
    # A missing name is reported already, and 'auto' is not resolved in prediction: in both cases, the other
    # settings that would be used are unknown.
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
    """Return the beginning of a message about a setting: its place and name."""
    setting = config.value(name, scope)
    return name if setting is None else setting.place(name)


def _check_names(config: Config, given: Sequence[str]) -> None:
    """Check the names of all tasks, including those built in Python."""
    for name in {*given} & {*config.tasks}:
        config.problem(f"the configuration and Python both have a task {name!r}; rename one of them")
    folders: dict[str, str] = {}
    for name in (*config.tasks, *given):
        if (problem := name_problem(name)) is not None:
            config.problem(problem)
        elif (other := folders.setdefault(name.casefold(), name)) != name:
            config.problem(
                f"tasks {other!r} and {name!r} have one folder where file names ignore case; rename one"
            )


def _check_computation(config: Config) -> None:
    """Check that the encoder's JSON does not ask for computations that palm's encoders do not support."""
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
                config.problem(f"{place_of(config, name, task.name)}: {missing_reason(path)}: {path}")


def _check_resume(config: Config, resume: str | None) -> None:
    """Check that the checkpoint to resume from exists; a run in stages only accepts `auto`."""
    if resume in (None, "auto") or config.place("stages") is not None:
        return
    if not any((base / str(resume)).is_dir() for base in (config.base, Path())):
        config.problem(
            f"{place_of(config, 'resume')} names {resume!r}, which is not a folder; give a checkpoint "
            "(SAVE_PATH/step_N), or auto for the newest of this run"
        )


def _lacks(config: Config, values: Mapping[str, Any], name: str, scope: str | None = None) -> bool:
    """Check whether a setting has no value; wrong ones, which are reported, are absent from `values`."""
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
                f"{place} needs evaluations before the end of the run; "
                "set eval_every_n_steps, or eval_every_epoch: True"
            )
    if mixing is not None and mixing[0].follows_scores and not evaluated:
        name = settings["mixing"]
        config.problem(f"{place_of(config, 'mixing')}: {name} uses dev scores; give a task a dev_file")
