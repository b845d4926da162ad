"""What a run is: one resolved configuration."""

from __future__ import annotations

import re
import textwrap
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from pathlib import Path
from types import MappingProxyType
from typing import Any

from palm.config.conversion import REQUIRED, Consumer, Parameter, settings_of, type_name
from palm.config.settings import (
    NO_RESULT,
    NOT_WRITTEN,
    OF_SEVERAL,
    PER_TASK,
    RunSettings,
    TaskSettings,
    marked,
)
from palm.core.component import Component, Registry, raise_any
from palm.core.errors import ConfigError

Key = tuple[str | None, str]
"""A task, `backbone` or None for the whole run; and the name of a setting."""

PRETRAIN_VOCABULARY = "--pretrain: vocab_path"
"""Place of the vocabulary of `--pretrain`."""

CHOSEN = re.compile(r"effort \w+: ")
"""Begins the reason for a value that was chosen, in place of the place of one that was given."""

Document = dict[str, dict[str, Any]]
"""A configuration with the sections `global`, `tasks` and `backbone`, JSON-ready and with absolute paths."""


@dataclass(frozen=True)
class ComponentConfig:
    """A component by its registry name (or dotted path) and all its settings, defaults included."""

    name: str
    settings: Mapping[str, Any] = field(default_factory=dict)

    def described(self) -> dict[str, Any]:
        """Return the name and the settings, JSON-ready."""
        return {"name": self.name, "settings": plain(self.settings)}


@dataclass(frozen=True)
class TaskConfig:
    """A task: its reader, its head, and its own settings."""

    name: str
    reader: ComponentConfig
    head: ComponentConfig
    settings: TaskSettings


@dataclass(frozen=True, kw_only=True)
class RunConfig:
    """A run; `palm.train.run.train` trains it.

    Args:
        settings: the settings of the run.
        backbone: the shared encoder.
        optimizer: the optimizer.
        groups: learning rates of parts of the model, and frozen parts.
        schedule: the schedule of the learning rate, without its horizon.
        mixing: the strategy that draws the tasks of each step.
        balance: the weighting of the tasks of one step; None: their losses are summed.
        tasks: the tasks, in order.
        origins: the places of the values that were given: `config.yaml:7`, `--batch_size`, or a reason.
        base: the folder that relative paths given later refer to.
        files: paths and contents of files that belong into the run's folder.
    """

    settings: RunSettings
    backbone: ComponentConfig
    optimizer: ComponentConfig
    groups: ComponentConfig
    schedule: ComponentConfig
    mixing: ComponentConfig
    balance: ComponentConfig | None
    tasks: tuple[TaskConfig, ...]
    origins: Mapping[Key, str] = field(default_factory=dict, compare=False)
    base: Path = field(default_factory=Path, compare=False)
    files: Mapping[Path, str] = field(default_factory=dict, compare=False)

    @property
    def targets(self) -> list[str]:
        """The names of the target tasks."""
        return [task.name for task in self.tasks if task.settings.is_target]

    @property
    def folder(self) -> Path:
        """The folder of the run and its models.

        Raises:
            ConfigError: there is no `save_path`.
        """
        if self.settings.save_path is None:
            raise ConfigError("save_path is needed to find the model; or give inference_model_dir")
        return self.settings.save_path

    def with_settings(self, **settings: Any) -> RunConfig:
        """Return the run with other settings of the run, which its components do not depend on."""
        return replace(self, settings=replace(self.settings, **settings))

    def reasons(self) -> list[str]:
        """Describe every value that was chosen for the user, with the reason."""
        document = self.to_dict()
        lines = []
        for (task, name), place in self.origins.items():
            if CHOSEN.match(place):
                value = (document["global"] if task is None else document["tasks"][task]).get(name)
                lines.append(f"{'' if task is None else f'{task}.'}{name} {value} ({place})")
        return lines

    def place(self, name: str, task: str | None = None) -> str | None:
        """Return the place of a setting's value (of a task, `backbone` or the run); None if it has none."""
        return self.origins.get((task, name)) or self.origins.get((None, name))

    def placed(self, name: str, task: str | None = None) -> str:
        """Return the beginning of a message about a setting: its place and its name."""
        place = self.place(name, task)
        return name if place is None else place if place.startswith("--") else f"{place}: {name}"

    def keys(self) -> Iterator[Key]:
        """Yield the scope and the name of every setting."""
        parts = [*self._parts_of_run(), ComponentConfig("", vars(self.settings))]
        yield from ((None, name) for part in parts for name in part.settings)
        yield from (("backbone", name) for name in self.backbone.settings)
        for task in self.tasks:
            own = (task.reader.settings, task.head.settings, vars(task.settings))
            yield from ((task.name, name) for part in own for name in part)

    def to_dict(self) -> Document:
        """Return the values that were given, as a configuration that `palm.config.read_config` accepts.

        A global setting may be meant for one task, and be an error without it. So every task has all settings
        that it uses, and the section `global` those of the run.
        """
        run = self._given(None, vars(self.settings), *(part.settings for part in self._parts_of_run()))
        run["task_instance"] = [task.name for task in self.tasks]
        hub = self.settings.pretrain_path
        if isinstance(hub, str) and hub in self.origins.values():
            run["backbone"] = "auto"  # on another machine, 'auto' finds the files in the cache there
        tasks = {task.name: self._given_of(task) for task in self.tasks}
        # Global settings take precedence, so a task's different value is repeated there.
        run |= {
            f"{task}.{name}": value
            for task, own in tasks.items()
            for name, value in own.items()
            if name in run and run[name] != value
        }
        backbone = self._given("backbone", self.backbone.settings)
        return plain({"global": run, "tasks": tasks, "backbone": backbone})  # type: ignore[no-any-return]

    def _parts_of_run(self) -> Iterator[ComponentConfig]:
        yield from (self.optimizer, self.groups, self.schedule)
        if len(self.tasks) > 1:
            yield self.mixing
        if self.balance is not None:
            yield self.balance

    def _given_of(self, task: TaskConfig) -> dict[str, Any]:
        own = {name: value for name, value in vars(task.settings).items() if name not in LISTED}
        components = {"reader": task.reader.name, "paradigm": task.head.name}
        return components | self._given(task.name, task.head.settings, task.reader.settings, own)

    def _given(self, scope: str | None, *settings: Mapping[str, Any]) -> dict[str, Any]:
        # The vocabulary of a model on the Hub lies in this machine's cache.
        hub = self.settings.pretrain_path
        cached = (hub, PRETRAIN_VOCABULARY) if isinstance(hub, str) else ()
        return {
            name: value
            for part in settings
            for name, value in part.items()
            if (scope, name) in self.origins and value is not None
            if not (name == "vocab_path" and self.origins[scope, name] in cached)
        }

    def origins_of(self, document: Document) -> dict[str, Any]:
        """Return the places of the values of `to_dict`, nested like them."""
        return {
            "global": self._places(None, document["global"]),
            "tasks": {task: self._places(task, own) for task, own in document["tasks"].items()},
            "backbone": self._places("backbone", document["backbone"]),
        }

    def _places(self, scope: str | None, settings: Mapping[str, Any]) -> dict[str, str]:
        return {name: place for name in settings if (place := self.origins.get((scope, name)))}

    def as_written(self) -> Document:
        """Return `to_dict()` as PALM prints it: what the global file or command line says is in `global`."""
        document = self.to_dict()
        sections = {**document["tasks"], "backbone": document["backbone"]}
        home = self._global_file()
        for name in dict.fromkeys(name for own in sections.values() for name in own):
            holders = {scope: own for scope, own in sections.items() if name in own}
            values = [own[name] for own in [*holders.values(), document["global"]] if name in own]
            places = {self.origins.get((scope, name), "") for scope in holders}
            # Tasks within the global file have places there too, but each its own.
            is_global = len(places) == 1 and all(value == values[0] for value in values)
            if is_global and (f"--{name}" in places or any(_file_of(place) == home for place in places)):
                document["global"][name] = values[0]
                for own in holders.values():
                    del own[name]
        return document

    def _global_file(self) -> str | None:
        files = (_file_of(place) for (scope, _), place in self.origins.items() if scope is None)
        return next((file for file in files if not file.startswith("--")), None)


def _file_of(place: str) -> str:
    return place.rpartition(":")[0] or place


LISTED = frozenset(marked(NOT_WRITTEN, TaskSettings))
"""Settings of a task that a configuration gives in a list for all tasks."""


def plain(value: Any) -> Any:
    """Return a setting JSON-ready; functions and classes become their dotted path, objects their class's."""
    if isinstance(value, Mapping):
        return {str(name): plain(item) for name, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [plain(item) for item in value]
    if value is None or isinstance(value, (str, int, float)):
        return value
    if isinstance(value, Path):
        return str(value)
    # A function has no settings to compare, only a name.
    owner = value if hasattr(value, "__qualname__") else type(value)
    return f"{owner.__module__}.{owner.__qualname__}"


def config_of(registry: Registry[Any], component: Component) -> ComponentConfig:
    """Return the configuration of a component: its registry name or dotted path, and its settings."""
    return ComponentConfig(registry.name_of(type(component)), component.settings)


def described(registry: Registry[Any], component: Component) -> dict[str, Any]:
    """Return the name and the settings of a component, JSON-ready."""
    return config_of(registry, component).described()


def with_given(run: RunConfig, tasks: Sequence[TaskConfig]) -> RunConfig:
    """Return the run with further tasks, which were built in Python.

    Raises:
        ConfigError: the run has a task of the same name.
    """
    known = {task.name for task in run.tasks}
    raise_any(
        f"the configuration and Python both have a task {task.name!r}; rename one of them"
        for task in tasks
        if task.name in known
    )
    return replace(run, tasks=(*run.tasks, *tasks))


def result_settings(document: Document) -> dict[str, Any]:
    """Return the values of a `to_dict` on which the result of the run depends."""
    ignored = {*marked(NO_RESULT), *marked(NO_RESULT, TaskSettings)}

    def kept(settings: Mapping[str, Any]) -> dict[str, Any]:
        return {name: value for name, value in settings.items() if name not in ignored}

    tasks = {task: kept(own) for task, own in document["tasks"].items()}
    return {**kept(document["global"]), "tasks": tasks, "backbone": document["backbone"]}


def only(values: Sequence[Any] | None, chosen: Sequence[int]) -> list[Any] | None:
    """Return some values of a list with one value per task; None for None."""
    return None if values is None else [values[number] for number in chosen]


def with_tasks(run: RunConfig, names: Sequence[str]) -> RunConfig:
    """Return the run of some of its tasks."""
    numbers = [[task.name for task in run.tasks].index(name) for name in names]
    lists: dict[str, Any] = {name: only(getattr(run.settings, name), numbers) for name in marked(PER_TASK)}
    settings = replace(run.settings, task_instance=list(names), **lists)
    tasks = tuple(run.tasks[number] for number in numbers)
    if len(tasks) > 1:
        return replace(run, settings=settings, tasks=tasks)
    defaults: dict[str, Any] = {each.name: each.default for each in fields(RunSettings)}
    settings = replace(settings, **{name: defaults[name] for name in marked(OF_SEVERAL)})
    alone = replace(tasks[0], settings=replace(tasks[0].settings, mix_ratio=1.0))
    return replace(run, settings=settings, balance=None, tasks=(alone,))


def printed(resolved: Mapping[str, Any]) -> str:
    """Format a resolved configuration in PALM's layout: headings 70 wide, names padded to 25, then a tab."""
    sections = {"global": resolved["global"], **resolved["tasks"], "backbone": resolved["backbone"]}
    lines: list[str] = []
    for title, values in sections.items():
        lines.append(f" {title} configuration ".center(70, "-"))
        for name, value in values.items():
            text = ", ".join(map(str, value)) if isinstance(value, list) else value
            lines.append(f"{name:25}\t{text}")
        lines.append("")
    return "\n".join(lines)


def help_text(
    consumers: Mapping[str, Sequence[Consumer]], provided: Mapping[Consumer, Collection[str]]
) -> str:
    """List the settings of consumers by heading, each once, with type, default and meaning.

    Those in `provided` are left out, because configurations cannot set them.
    """
    sections = []
    for heading, group in consumers.items():
        lines = [f"{heading}:"]
        for parameter in listed(group, provided):
            lines += setting_lines(parameter, "--")
        sections.append("\n".join(lines))
    return "\n\n".join(sections)


def setting_lines(parameter: Parameter, before: str = "") -> Iterator[str]:
    """Describe a setting: its name, prefixed by `before`, type and default; its meaning."""
    facts = [type_name(parameter.annotation), default_text(parameter)]
    yield f"  {before}{parameter.name}  ({', '.join(facts)})"
    if parameter.doc:
        yield textwrap.indent(textwrap.fill(parameter.doc, 94), " " * 6)


def listed(
    consumers: Sequence[Consumer], provided: Mapping[Consumer, Collection[str]] = MappingProxyType({})
) -> list[Parameter]:
    """Return the settings of several consumers, each name once, as first declared; see `help_text`."""
    found: dict[str, Parameter] = {}
    for consumer in consumers:
        for name, parameter in settings_of(consumer).items():
            if name not in provided.get(consumer, ()):
                found.setdefault(name, parameter)
    return list(found.values())


def default_text(parameter: Parameter) -> str:
    """Return `required`, or the default as it would be written in YAML."""
    default = parameter.default
    if default is REQUIRED:
        return "required"
    if default is None or isinstance(default, bool):
        return f"default {default}".lower()
    text = ", ".join(map(str, default)) if isinstance(default, (list, tuple)) else str(default)
    return f"default {text or 'empty'}"
