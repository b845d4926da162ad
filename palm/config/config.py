"""The layers of a configuration, the settings that components read from them, and the unused ones."""

from __future__ import annotations

import copy
import functools
import logging
import os
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from types import MappingProxyType
from typing import Any

import yaml

from palm.config.conversion import (
    REQUIRED,
    Consumer,
    FilePath,
    Mismatch,
    ModelPath,
    convert_value,
    describe_mismatch,
    settings_of,
)
from palm.config.files import (
    Lines,
    Setting,
    display_path,
    guessed,
    program_arguments,
    read_arguments,
    read_json,
    read_yaml,
    shown,
)
from palm.core.cache import explain_limits
from palm.core.component import did_you_mean, raise_any
from palm.core.errors import ConfigError, PalmError, Problem

logger = logging.getLogger("palm")

AUTO = "auto"
"""Value of `backbone` that means: the encoder named in the directory of pretrained weights."""

PUBLISHED = {"epoch": "num_epochs", "seed": "random_seed"}
"""Global settings under other names of PaddlePALM's documents and programs."""

PRETRAIN = "pretrain"
"""The option that sets `backbone: auto` and `pretrain_path`."""

Components = Mapping[str, Collection[str]]
"""The setting that names a component (`reader`) -> names of components."""

Settings = dict[str, Setting]
Key = tuple[str | None, str]
"""A task, `backbone` or None for the whole run; and the name of a setting."""

Directory = Callable[[Path | str], Mapping[str, Any]]


@explain_limits()
def read_config(
    config: str | Path | Mapping[str, Any],
    task_dir: str | Path = ".",
    argv: Sequence[str] | None = None,
    needs_tasks: bool = True,
    directory: Directory | None = None,
    resolves_auto: bool = True,
    origins: Mapping[Key, str] | None = None,
) -> Config:
    """Read the configuration of a run.

    Args:
        config: the global YAML file, or its content as a dict. Its key `tasks` may contain the settings of
            tasks by name, instead of their files, and `backbone`, if it is a mapping, those of the backbone's
            JSON, as in the result of `RunConfig.to_dict`.
        task_dir: the folder of the task files `<name>.yaml`; relative to the folder of the global file if it
            exists there, otherwise to the working directory.
        argv: arguments that override the files; None for the program's own, except in a notebook, an
            interactive session or under pytest.
        needs_tasks: False if a configuration without tasks is allowed.
        directory: reads the settings in a directory of pretrained weights, including the name of the encoder
            as `backbone`; called for `pretrain_path` if `backbone` is 'auto', and for the option
            `--pretrain`. Its settings are the weakest. For a model on the Hugging Face Hub it also returns
            the exact name, as `pretrain_path`. None leaves 'auto' and `--pretrain` unresolved.
        resolves_auto: False leaves 'auto' unresolved, unless there is `--pretrain`.
        origins: the places of the values of a dict: task, `backbone` or None, and name -> place.

    Raises:
        ConfigError: a file is missing or unreadable, or the tasks are not clear.
        HelpRequested: the arguments ask for help.
    """
    problems: list[str] = []
    options = read_arguments(program_arguments() if argv is None else argv, problems)
    sources = _Sources(options, problems, origins)
    sources.open(config)
    if directory is not None:
        sources.read_directory(directory, resolves_auto)
    return sources.merged(Path(task_dir), needs_tasks)


@dataclass(eq=False)
class Layer:
    """The settings of one source.

    Attributes:
        settings: name -> setting, as written.
        scope: the task that they are for, or `backbone`; None for the whole run.
        is_optional: True for settings that need not be used: those of a backbone's JSON.
    """

    settings: Settings
    scope: str | None = None
    is_optional: bool = False


class _Sources:
    """The global file, task files and the backbone's JSON; reports all that cannot be read together.

    Args:
        options: the settings of the command line.
        problems: the report.
        origins: see `read_config`.
    """

    def __init__(
        self, options: Settings, problems: list[str], origins: Mapping[Key, str] | None = None
    ) -> None:
        self.options = options
        self.problems = problems
        self.origins = origins
        self.failed = False
        self.title = "config"
        self.base = Path.cwd()
        self.everything: Settings = {}
        self.inline: dict[str, Settings] = {}
        self.backbone: Settings | None = None
        self.directory: Settings = {}

    def open(self, config: str | Path | Mapping[str, Any]) -> None:
        """Read the global file or dict and its sections."""
        content = config
        if not isinstance(content, Mapping):
            path = Path(os.path.abspath(content))  # noqa: PTH100 - resolve() would follow links
            self.title = display_path(path)
            self.base = path.parent
            content = read_yaml(path, self.problems)
        # A mapping under these names is a section; a string, as in `backbone: bert`, is a setting.
        names = ("global", "tasks", "backbone")
        sections = {name: content[name] for name in names if isinstance(content.get(name), Mapping)}
        titles = {name: self._title(self.title, content, name) for name in sections}
        everything = self._settings(content, self.title)
        self.everything = {name: value for name, value in everything.items() if name not in sections}
        if "global" in sections:
            self.everything |= self._settings(sections["global"], titles["global"])
        if "backbone" in sections:
            self.backbone = self._settings(sections["backbone"], titles["backbone"], "backbone")
        self._open_tasks(sections.get("tasks", {}), titles.get("tasks", ""))

    def _open_tasks(self, tasks: Mapping[str, Any], title: str) -> None:
        for name, settings in tasks.items():
            if not isinstance(settings, Mapping | None):
                place = self._settings(tasks, title)[str(name)].origin
                self._fail(f"{place}: {name} should be a mapping, not {shown(settings)}")
                settings = None
            own = self._settings(settings or {}, self._title(title, tasks, name), str(name))
            self.inline[str(name)] = own

    def _title(self, title: str, content: Mapping[str, Any], name: str) -> str:
        """Return the title of a section: the file itself, or `config['tasks']`."""
        return title if isinstance(content, Lines) else f"{title}[{name!r}]"

    def _settings(self, content: Mapping[str, Any], title: str, scope: str | None = None) -> Settings:
        def place(name: str) -> str:
            if self.origins is not None:
                return self.origins.get((scope, name), "")
            line = content.lines.get(name) if isinstance(content, Lines) else None
            return title if line is None else f"{title}:{line}"

        return {str(name): Setting(value, place(name), self.base) for name, value in content.items()}

    def _fail(self, *lines: str) -> None:
        self.problems += lines
        self.failed |= bool(lines)

    def _of_run(self, name: str) -> Setting | None:
        return self.options.get(name) or self.everything.get(name)

    def read_directory(self, read: Directory, resolves_auto: bool) -> None:
        """Add the settings in a directory of pretrained weights, for `backbone: auto` or `--pretrain`."""
        pretrain = self.options.pop(PRETRAIN, None)
        if pretrain is not None:
            values = {"backbone": AUTO, "pretrain_path": pretrain.value, "backbone_config_path": None}
            self._set_options(pretrain, values)
        backbone = self._of_run("backbone")
        if backbone is None or backbone.value != AUTO or not (resolves_auto or pretrain):
            return
        where = self._of_run("pretrain_path")
        if where is None:
            self._fail(f"{backbone.place('backbone')}: 'auto' needs pretrain_path, the encoder's directory")
            return
        try:
            path = convert_value(where, ModelPath)
            found = dict(read(path))
        except Mismatch as error:
            self._fail(describe_mismatch("pretrain_path", where, ModelPath, error))
            return
        except PalmError as error:
            self._fail(*(f"{where.place('pretrain_path')}: {line}" for line in str(error).splitlines()))
            return
        title = found.get("pretrain_path", path if isinstance(path, str) else display_path(path))
        for name in ("backbone", "pretrain_path"):
            layer = self.options if name in self.options else self.everything
            layer[name] = replace(layer[name], value=found.pop(name, layer[name].value))
        if pretrain is not None:
            self._set_options(pretrain, {name: found[name] for name in ("vocab_path", "do_lower_case")})
        self.directory = {name: Setting(value, title, self.base) for name, value in found.items()}

    def _set_options(self, option: Setting, values: Mapping[str, Any]) -> None:
        for name, value in values.items():
            self.options[name] = replace(option, value=value, origin=f"{option.origin}: {name}")

    def merged(self, task_dir: Path, needs_tasks: bool) -> Config:
        """Return the configuration of all layers."""
        beside = self.base / task_dir
        folder = beside if beside.is_dir() else Path.cwd() / task_dir
        tasks = {task: self._task(task, folder) for task in self._task_names(needs_tasks)}
        backbone_title, backbone, gap = self._backbone()
        if self.failed:
            raise_any(self.problems)
        layers = [
            *self._layers(self.options, list(tasks)),
            *self._layers(self.everything, list(tasks)),
            *(Layer(settings, task) for task, (_, settings) in tasks.items()),
            Layer(self.directory | backbone, "backbone", is_optional=True),
        ]
        titles: dict[str | None, str] = {None: self.title}
        titles.update({task: title for task, (title, _) in tasks.items()}, backbone=backbone_title)
        config = Config(layers, titles, self.base, self.problems, gap)
        config.value("task_instance")  # counts as used, although no component reads it
        config.value("backbone_config_path")
        return config

    def _task_names(self, needs_tasks: bool) -> list[str]:
        setting = self._of_run("task_instance")
        if setting is None and self.inline:
            setting = self.everything["task_instance"] = Setting(list(self.inline), self.title, self.base)
        if setting is None and not needs_tasks:
            return []
        if setting is None or setting.value is None:
            self._fail_without_tasks()
            return []
        try:
            names: list[str] = convert_value(setting, list[str])
        except Mismatch as error:
            self._fail(describe_mismatch("task_instance", setting, list[str], error))
            return []
        place = setting.place("task_instance")
        self._fail(*(f"{place} names {name!r} twice" for name in sorted({*names}) if names.count(name) > 1))
        if not names:
            self._fail(f"{place} names no task")
        if "backbone" in names:
            self._fail(f"{place}: a task cannot be called 'backbone'")
        return list(dict.fromkeys(names))

    def _fail_without_tasks(self) -> None:
        self._fail(f"{self.title}: task_instance is missing (the names of the tasks)")
        for name, own in (*self.everything.items(), *self.options.items()):
            if similar := did_you_mean(name, ["task_instance"]):
                self._fail(f"{own.origin}: nothing uses {name!r}{similar}")

    def _task(self, task: str, folder: Path) -> tuple[str, Settings]:
        """Return the title and settings of one task, from the global file or its own file."""
        if task in self.inline:
            return next((s.origin for s in self.inline[task].values()), self.title), self.inline[task]
        path = folder / f"{task}.yaml"
        title = display_path(path)
        if path.is_file():
            return title, self._read(functools.partial(read_yaml, problems=self.problems), path)
        setting = self._of_run("task_instance")
        assert setting is not None
        known = [*self.inline, *(path.stem for path in sorted(folder.glob("*.yaml")))]
        named = f"{setting.place('task_instance')} names {task!r}"
        self._fail(f"{named}, but there is no file {title}{did_you_mean(task, known)}")
        return title, {}

    def _read(self, read: Callable[[Path], Lines], path: Path) -> Settings:
        """Return the settings in a file; report failures and return none."""
        try:
            return self._settings(read(path), display_path(path))
        except ConfigError as error:
            self._fail(*error.problems)
            return {}

    def _backbone(self) -> tuple[str, Settings, str | None]:
        """Return the title and settings of the backbone, and the problem if its file is missing."""
        setting = self._of_run("backbone_config_path")
        if self.backbone is not None or setting is None:
            return self.title, self.backbone or {}, None
        try:
            path = convert_value(setting, FilePath | None)
        except Mismatch as error:
            return self.title, {}, describe_mismatch("backbone_config_path", setting, Path, error)
        if path is None:
            return self.title, {}, None
        settings = self._read(read_json, path)
        backbone = self._of_run("backbone")
        if backbone is not None and backbone.value == "transformers":
            settings["encoder_config_path"] = setting  # this backbone reads the whole file itself
        return display_path(path), settings, None

    def _layers(self, settings: Settings, tasks: Collection[str]) -> list[Layer]:
        """Return a layer for each task (for settings such as `mrqa.max_seq_len`), and one for all."""
        # Layers of tasks come first, so they are stronger.
        scopes: dict[str | None, Settings] = {task: {} for task in tasks}
        scopes[None] = {}
        for name, setting in settings.items():
            task, dot, own = name.rpartition(".")
            if dot and task not in tasks:
                unknown = f"there is no task {task!r}{did_you_mean(task, tasks)}"
                self.problems.append(f"{setting.place(name)}: {unknown}")
            else:
                scopes[task or None][own] = setting
        for other, own_name in PUBLISHED.items():
            if other in scopes[None] and own_name not in scopes[None]:
                scopes[None][own_name] = scopes[None].pop(other)
            elif other in scopes[None]:
                extra, setting = scopes[None].pop(other), scopes[None][own_name]
                if guessed(extra.value) != guessed(setting.value):
                    line = f"{other} {shown(extra.value)} contradicts {own_name} {shown(setting.value)}"
                    self.problems.append(f"{extra.about(line)}; remove one of them")
        return [Layer(own, scope) for scope, own in scopes.items()]


class Config:
    """Values by precedence: command line, global file, task file, palm's choices, JSON file of the backbone.

    Args:
        layers: the settings of all sources, the strongest first; the last one is the backbone's JSON.
        titles: scope -> the file for its settings; tasks in order.
        base: the folder that relative paths in the files refer to.
        problems: the report so far.
        backbone_gap: the problem to report if the backbone is asked for and its JSON is missing.

    Attributes:
        tasks: the names of the tasks, in order.
    """

    def __init__(
        self,
        layers: Sequence[Layer],
        titles: Mapping[str | None, str],
        base: Path,
        problems: list[str],
        backbone_gap: str | None = None,
    ) -> None:
        self.tasks = [scope for scope in titles if scope not in (None, "backbone")]
        self.base = base
        self.layers = list(layers)
        self._titles = titles
        self._problems = problems
        self._backbone_gap = backbone_gap
        self._known: dict[str | None, set[str]] = {scope: set() for scope in titles}
        self._reported: set[Any] = set()
        self._excused: set[str | None] = set()

    def value(self, name: str, scope: str | None = None) -> Setting | None:
        """Return the setting of this name with its type guessed, or None; it counts as used.

        Args:
            name: the name as written.
            scope: None for the whole run, a task's name, or `backbone`.
        """
        self._known[scope].add(name)
        found = self._found(name, scope)
        return replace(found[0], value=guessed(found[0].value)) if found else None

    def arguments(
        self,
        consumer: Consumer,
        scope: str | None = None,
        provided: Collection[str] = (),
        required: bool = True,
        from_backbone: bool = True,
    ) -> tuple[dict[str, Any], dict[str, str]]:
        """Return keyword arguments for a class or function, converted to its annotations, and their places.

        Settings without a value are left out, so their defaults apply. Values that do not fit, and missing
        values of required settings, are added to the report.

        Args:
            consumer: the class or function; its signature lists the settings.
            scope: None for the whole run, a task's name, or `backbone`.
            provided: parameters that the caller supplies; they are left out.
            required: False if settings may be missing and files need not exist, as with the settings of
                training in prediction.
            from_backbone: False for settings that name files or code: the backbone's JSON and directories of
                weights are not trusted with these.
        """
        if scope == "backbone" and required and self._backbone_gap:
            self.problem(self._backbone_gap)
        values: dict[str, Any] = {}
        places: dict[str, str] = {}
        for name, parameter in settings_of(consumer).items():
            if name in provided:
                continue
            self._known[scope].add(name)
            if found := self._found(name, scope, from_backbone):
                self._convert(name, found, parameter.annotation, values, required)
                places[name] = found[0].origin
            elif required and parameter.default is REQUIRED and (scope, name) not in self._reported:
                if self._backbone_gap and name in self._known["backbone"]:
                    continue  # the missing JSON would contain it, and is reported
                self._reported.add((scope, name))
                self.missing(name, parameter.doc, scope)
        return values, places

    def missing(self, name: str, meaning: str, scope: str | None = None) -> None:
        """Report a missing setting of a scope; its meaning may be empty."""
        note = f" ({meaning.rstrip('.')})" if meaning else ""
        self.problem(f"{self._titles[scope]}: {name} is missing{note}")

    def problem(self, line: str) -> None:
        """Add a line to the report; it begins with its place."""
        self._problems.append(line)

    def excuse(self, scope: str | None) -> None:
        """Report only likely misspellings among unused settings of a scope, as its component is unknown."""
        self._excused.add(scope)

    def place(self, name: str, scope: str | None = None) -> str | None:
        """Return the place of a setting's value, `config.yaml:7` or `--batch_size`; None if it is not set."""
        found = self._found(name, scope)
        return found[0].origin if found else None

    def placed(self, name: str, scope: str | None = None) -> str:
        """Return the beginning of a message about a setting: its place and name."""
        found = self._found(name, scope)
        return found[0].place(name) if found else name

    def choose(self, settings: Mapping[str, tuple[Any, str]], scope: str | None = None) -> None:
        """Set values that neither files nor the command line set.

        Args:
            settings: name -> value, and the reason for it, which is its origin.
            scope: None for the whole run, or a task's name.
        """
        chosen = {name: Setting(value, why, self.base) for name, (value, why) in settings.items()}
        # Weaker than all settings of users, and stronger than the backbone's JSON.
        self.layers.insert(-1, Layer(chosen, scope, is_optional=True))

    def provisional(self) -> Config:
        """Return a copy for further choices, which logs no message that its original logs too."""
        copied = copy.deepcopy(self)
        copied._reported = self._reported
        return copied

    def rename_in_backbone(self, names: Mapping[str, str]) -> None:
        """Rename settings in the backbone's JSON to the encoder's own names, under which heads look them up.

        If both spellings of a setting are present, its own name counts, as in PaddlePALM: other programs
        write the file, and some write both.
        """
        settings = self.layers[-1].settings
        for other, own in names.items():
            if other in settings:
                settings.setdefault(own, settings.pop(other))

    def finish(
        self,
        owners: Mapping[str, Components] = MappingProxyType({}),
        own: Mapping[str | None, Components] = MappingProxyType({}),
    ) -> None:
        """Report every unused setting, and raise if there is any problem.

        Args:
            owners: setting -> the registered components that accept it.
            own: scope -> its components; None for the whole run.

        Raises:
            ConfigError: all problems at once.
        """
        unused = []
        for layer in sorted(self.layers, key=lambda layer: layer.scope is not None):
            excused = bool(self._excused if layer.scope is None else self._excused & {layer.scope, None})
            mine = own.get(layer.scope, {})
            # A setting of the whole run may be meant for a task, one of a task is for that task only.
            used = set().union(*self._known.values()) if layer.scope is None else self._known[layer.scope]
            for name in layer.settings if not layer.is_optional else ():
                hint = self._reason(name, layer.scope, excused, owners.get(name, {}), mine)
                if name not in used and hint:
                    unused.append(layer.settings[name].about(hint))
        # Settings in files in the order of their lines, then those of the command line.
        raise_any([*self._problems, *sorted(unused, key=lambda line: line.startswith("--"))])

    def _found(self, name: str, scope: str | None, from_backbone: bool = True) -> list[Setting]:
        """Return every layer's value, the strongest first; the backbone's JSON is for tasks too."""
        scopes = {None, scope} | ({"backbone"} if scope is not None and from_backbone else set())
        layers = (layer for layer in self.layers if layer.scope in scopes)
        return [layer.settings[name] for layer in layers if name in layer.settings]

    def _convert(
        self, name: str, found: Sequence[Setting], annotation: Any, values: dict[str, Any], required: bool
    ) -> None:
        """Add the strongest value to `values`, or the problem with it to the report."""
        winner = found[0]
        try:
            value = convert_value(winner, annotation)
        except Mismatch as error:
            if required or error.missing is None:
                self.problem(describe_mismatch(name, winner, annotation, error))
                return
            value = error.missing
        values[name] = value
        for setting in found[1:]:
            pair = (winner.origin, setting.origin, name)
            if pair not in self._reported and guessed(winner.value) != guessed(setting.value):
                self._reported.add(pair)
                given = shown(winner.value), shown(setting.value)
                task = self._task_of(setting) if self._task_of(winner) is None else None
                is_meant = task is None or winner.origin.startswith("--")
                remedy = "" if is_meant else f"; to set it for one task, write {task}.{name} there"
                log = logger.info if is_meant else logger.warning
                log("%s = %s overrides %s (%s)%s", winner.place(name), *given, setting.origin, remedy)

    def _task_of(self, setting: Setting) -> str | None:
        """Return the task that a setting is written for."""
        scopes = (layer.scope for layer in self.layers if any(s is setting for s in layer.settings.values()))
        return next((scope for scope in scopes if scope in self.tasks), None)

    def _reason(
        self, name: str, task: str | None, excused: bool, owners: Components, own: Components
    ) -> str | None:
        """Return the problem with an unused setting, or None.

        `owners` are the components that accept it, `own` those of the task or the run.
        """
        if ours := _other_names().get(name):
            return f"nothing uses {name!r}; in palm it is {ours}"
        if task is not None and name in self._known[None]:
            return f"{name!r} is a setting of the whole run; it belongs in {self._titles[None]}"
        known = set().union(*self._known.values())
        hint = did_you_mean(name, sorted(known - {name}))
        if excused and (name in known or owners or not hint):
            return None
        if has := {kind: names for kind, names in own.items() if kind in owners}:
            whose = f"task {task!r}" if task is not None else "this run"
            return f"{name} belongs to {_listed(owners)}; {whose} has {_listed(has)}"
        return f"nothing in task {task!r} uses {name!r}" if name in known else f"nothing uses {name!r}{hint}"


def located(place: str | None, line: str, title: str = "") -> str:
    """Return a problem with the place of its setting, or with a title if it has none."""
    setting = line.setting if isinstance(line, Problem) else ""
    is_exact = place is not None and (":" in place or place.startswith("--"))  # a mapping has no line numbers
    text = str(line)
    if setting and is_exact:
        return f"{place}: {text}"
    return f"{title}{text}"


def _listed(components: Components) -> str:
    return " and ".join(f"{kind} {', '.join(names)}" for kind, names in components.items())


@functools.cache
def _other_names() -> dict[str, str]:
    """Return names of settings in other programs, and what to write in palm."""
    content = yaml.safe_load(Path(__file__).with_name("other_names.yaml").read_text("utf-8"))
    return {name: ours for ours, names in content.items() for name in names}
