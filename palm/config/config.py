"""The layers of a configuration, who took what from them, and what nobody took."""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection, Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any, NamedTuple

from palm.config.conversion import Mismatch, MissingFile, complaint, convert_value
from palm.config.layers import SettingsLayer, Source, json_ready
from palm.config.printing import printed
from palm.config.problems import Problems
from palm.config.removed import removal
from palm.config.schema import REQUIRED, Consumer, Parameter, settings_of
from palm.config.values import Setting, guessed, shown
from palm.core.registry import did_you_mean

logger = logging.getLogger("palm")

AUTO = "auto"
"""The `backbone` that the directory of pretrained weights names."""


Components = Mapping[str, Collection[str]]
"""The setting that names a component (`reader`) -> names of components."""


class Found(NamedTuple):
    """A setting in the layer that holds it."""

    layer: SettingsLayer
    name: str
    setting: Setting

    @property
    def place(self) -> str:
        return self.setting.place(self.name)


class Config:
    """Values by precedence: command line, global file, then the task's file, then the backbone's JSON.

    Args:
        command_line: the command line.
        everything: the global file or dict.
        tasks: task name -> its file, in the order of the tasks.
        backbone: the backbone's JSON; what nobody takes of it is no mistake.
        titles: scope -> the file where a setting of it belongs.
        base: the folder that relative paths in the files count from.
        backbone_gap: what to report when the backbone is asked for, but its JSON is not there.
        problems: the report so far.
        cached_vocab: the vocabulary in this machine's cache, where `backbone: auto` asked a model at Hugging
            Face.

    Attributes:
        tasks: the names of the tasks, in order.
    """

    def __init__(
        self,
        command_line: Source,
        everything: Source,
        tasks: Mapping[str, SettingsLayer],
        backbone: SettingsLayer,
        titles: Mapping[str | None, str],
        base: Path,
        backbone_gap: str | None,
        problems: Problems,
        cached_vocab: str | None = None,
    ) -> None:
        self.tasks = list(tasks)
        self.base = base
        self._backbone_gap = backbone_gap
        self._command_line = command_line
        self._everything = everything
        self._files = tasks
        self._backbone = backbone
        self._titles = titles
        self._problems = problems
        self._cached_vocab = cached_vocab
        self._known: dict[str | None, set[str]] = {scope: set() for scope in titles}
        self._said: set[Any] = set()
        self._excused: set[str | None] = set()
        self._owners: Mapping[str, Components] = {}
        self._own: Mapping[str | None, Components] = {}

    def value(self, name: str, scope: str | None = None) -> Setting | None:
        """The setting of this name with its type guessed, or None; it counts as used.

        Args:
            name: the name as written.
            scope: None for the whole run, a task's name, or `"backbone"`.
        """
        parameter = Parameter(name, Any, REQUIRED, "")
        found = self._found(parameter, scope)
        if not found:
            return None
        self._say_overruled(found, parameter)
        winner = found[0]
        value = guessed(winner.setting.value)
        winner.layer.record(winner.name, value, declared=False)
        return Setting(value, winner.setting.origin, winner.setting.base)

    def arguments(
        self,
        consumer: Consumer,
        scope: str | None = None,
        provided: Collection[str] = (),
        required: bool = True,
        from_backbone: bool = True,
    ) -> dict[str, Any]:
        """Keyword arguments for a class or function, converted to its annotations.

        What is set nowhere is left out, for its default. What does not fit, or is required
        and missing, goes into the report.

        Args:
            consumer: the class or function; its signature says what it takes.
            scope: None for the whole run, a task's name, or `"backbone"`.
            provided: parameters that the caller fills himself; they are left out.
            required: False where nothing has to be set and no file has to exist, as for the
                settings of a training while predicting.
            from_backbone: False for what the backbone's JSON, or a directory of weights, must not decide:
                it comes with the weights, from others, and these settings name files and code.
        """
        if scope == "backbone" and required and self._backbone_gap:
            self.problem(self._backbone_gap)
        result: dict[str, Any] = {}
        for name, parameter in settings_of(consumer).items():
            if name in provided:
                continue
            found = self._found(parameter, scope, from_backbone)
            if found:
                self._convert(found, parameter, result, required)
            elif required and parameter.default is REQUIRED and (scope, name) not in self._said:
                if self._backbone_gap and name in self._known["backbone"]:
                    continue  # it would be in the JSON that is not there, which is reported
                self._said.add((scope, name))
                self.missing(name, parameter.doc, scope)
        return result

    def missing(self, name: str, meaning: str, scope: str | None = None) -> None:
        """Report a setting that is not there.

        Args:
            name: of the setting.
            meaning: what it is; may be empty.
            scope: where it belongs.
        """
        told = f" ({meaning.rstrip('.')})" if meaning else ""
        self.problem(f"{self._titles[scope]}: {name} is missing{told}")

    def problem(self, line: str) -> None:
        """Add a line to the report; it begins with its place."""
        self._problems.add(line)

    def excuse(self, scope: str | None) -> None:
        """A component of this scope is unknown: of what nobody took, report only likely misspellings."""
        self._excused.add(scope)

    def place(self, name: str, scope: str | None = None) -> str | None:
        """Where the value of a setting comes from, `config.yaml:7` or `--batch_size`; None if it is not set.

        Args:
            name: one of its spellings.
            scope: as for `value`.
        """
        parts = [layer.settings[name] for layer in self._layers(scope) if name in layer.settings]
        return parts[0].origin if parts else None

    def adopt_aliases(self, aliases: Mapping[str, str]) -> None:
        """Read the backbone's JSON by the encoder's own names, so that heads find there what they need.

        Where both spellings of one setting stand there, its own name counts, as it did for PaddlePALM: the
        file is somebody else's, and programs write both.
        """
        settings = dict(self._backbone.settings)
        for other, own in aliases.items():
            if other in settings:
                settings.setdefault(own, settings.pop(other))
        self._backbone.settings = settings

    def finish(
        self,
        owners: Mapping[str, Components] = MappingProxyType({}),
        own: Mapping[str | None, Components] = MappingProxyType({}),
    ) -> None:
        """Close the account.

        Args:
            owners: setting -> the components that take it, of all that there are.
            own: scope -> the components that it has; None for all of the run.

        Raises:
            ConfigError: all problems at once, among them every setting that nobody took.
        """
        self._owners, self._own = owners, own
        # The layers whose settings somebody has to use, and the task that each is for.
        everything, command_line = self._everything, self._command_line
        owned = [(None, everything.everybody), *self._files.items(), (None, command_line.everybody)]
        for task, layer in [*owned, *everything.single.items(), *command_line.single.items()]:
            excused = bool(self._excused) if task is None else bool(self._excused & {task, None})
            for name, setting in layer.settings.items():
                if name not in layer.used and (hint := self._reason(name, task, excused)):
                    self._problems.add(f"{setting.origin}: {hint}")
        self._problems.raise_if_any()

    def resolved(self) -> dict[str, Any]:
        """The values that were received, JSON-ready, paths absolute; a configuration in itself.

        Its sections are `global`, `tasks` (by name) and `backbone`. `read_config` takes it in
        place of all files and of the command line, and gives the same arguments.
        """
        resolved = self._sections(SettingsLayer.received)
        everything, backbone = resolved["global"], resolved["backbone"]
        everything["task_instance"] = self.tasks
        backbone |= {
            name: json_ready(guessed(setting.value))
            for name, setting in self._backbone.settings.items()
            if name not in self._backbone.used
        }
        if self._cached_vocab is not None:  # elsewhere 'auto' finds it in that machine's cache
            everything["backbone"] = AUTO
            for section in (everything, backbone):
                if section.get("vocab_path") == self._cached_vocab:
                    del section["vocab_path"]
        return resolved

    def origins(self) -> dict[str, Any]:
        """Where the values of `resolved` come from (`config.yaml:7`, `--batch_size`), by section."""
        return self._sections(SettingsLayer.origins)

    def _sections(self, of: Callable[[SettingsLayer], dict[str, Any]]) -> dict[str, Any]:
        """What a function says of every layer, by section; the command line comes after the files."""
        sources = (self._everything, self._command_line)
        everything = {name: value for source in sources for name, value in of(source.everybody).items()}
        single = {
            f"{task}.{name}": value
            for source in sources
            for task, layer in source.single.items()
            for name, value in of(layer).items()
        }
        return {
            "global": everything | single,
            "tasks": {task: of(layer) for task, layer in self._files.items()},
            "backbone": of(self._backbone),
        }

    def printed(self) -> str:
        """The resolved configuration in PALM's layout."""
        return printed(self.resolved())

    def _layers(self, scope: str | None, from_backbone: bool = True) -> list[SettingsLayer]:
        """The layers that reach a scope, the strongest first."""
        layers: list[SettingsLayer] = []
        for source in (self._command_line, self._everything):
            if scope is not None and scope in source.single:
                layers.append(source.single[scope])
            layers.append(source.everybody)
        if scope is not None and scope in self._files:
            layers.append(self._files[scope])
        return [*layers, self._backbone] if scope is not None and from_backbone else layers

    def _found(self, parameter: Parameter, scope: str | None, from_backbone: bool = True) -> list[Found]:
        """Where a parameter is set, the strongest first; all of it counts as used."""
        self._known[scope] |= set(parameter.spellings)
        found = []
        for layer in self._layers(scope, from_backbone):
            here = [Found(layer, s, layer.settings[s]) for s in parameter.spellings if s in layer.settings]
            layer.used |= {name for _, name, _ in here}
            for other in here[1:]:
                if not _agree(here[0].setting, other.setting, parameter):
                    first = f"{here[0].name} ({here[0].setting.origin})"
                    self.problem(f"{other.place} is another name of {first}; keep one")
            found += here[:1]
        return found

    def _convert(
        self, found: list[Found], parameter: Parameter, result: dict[str, Any], required: bool
    ) -> None:
        """Enter the winner's value into `result`, or what is wrong with it into the report."""
        winner, annotation = found[0], parameter.annotation
        try:
            value = convert_value(winner.setting, annotation)
        except Mismatch as error:
            if required or not isinstance(error, MissingFile):
                self.problem(complaint(winner.name, winner.setting, annotation, error))
                return
            value = error.path
        result[parameter.name] = value
        winner.layer.record(winner.name, value, declared=annotation is not Any)
        self._say_overruled(found, parameter)

    def _say_overruled(self, found: list[Found], parameter: Parameter) -> None:
        winner = found[0]
        for _, name, setting in found[1:]:
            pair = (winner.setting.origin, winner.name, setting.origin, name)
            if pair not in self._said and not _agree(winner.setting, setting, parameter):
                self._said.add(pair)
                ours, theirs = shown(winner.setting.value), shown(setting.value)
                logger.info("%s = %s overrules %s (%s)", winner.place, ours, theirs, setting.origin)

    def _reason(self, name: str, task: str | None, excused: bool) -> str | None:
        """Say what is wrong with a setting that nothing used, if anything."""
        if gone := removal(name):
            return gone
        if task is not None and name in self._known[None]:
            return f"{name!r} is a setting of the whole run; it belongs in {self._titles[None]}"
        known = set().union(*self._known.values())
        hint = did_you_mean(name, sorted(known - {name}))
        if excused and (name in known or name in self._owners or not hint):
            return None
        owners = self._owners.get(name, {})
        if has := {kind: names for kind, names in self._own.get(task, {}).items() if kind in owners}:
            whose = f"task {task!r}" if task is not None else "this run"
            return f"{name} belongs to {_listed(owners)}; {whose} has {_listed(has)}"
        return f"nothing in task {task!r} uses {name!r}" if name in known else f"nothing uses {name!r}{hint}"


def _listed(components: Components) -> str:
    return " and ".join(f"{kind} {', '.join(names)}" for kind, names in components.items())


def _agree(one: Setting, other: Setting, parameter: Parameter) -> bool:
    try:
        return bool(convert_value(one, parameter.annotation) == convert_value(other, parameter.annotation))
    except Mismatch:
        return False
