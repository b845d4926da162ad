"""The layers of a configuration, the settings that components took from them, and the unused ones."""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from types import MappingProxyType
from typing import Any, NamedTuple

from palm.config.conversion import Mismatch, complaint, convert_value
from palm.config.foreign import FOREIGN
from palm.config.layers import SettingsLayer, json_ready
from palm.config.printing import printed
from palm.config.schema import REQUIRED, Consumer, Parameter, settings_of
from palm.config.values import Setting, guessed, shown
from palm.core.checks import raise_any
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
        layers: the settings of all sources, the strongest first.
        titles: scope -> the file where a setting of it belongs; tasks are in their order.
        base: the folder that relative paths in the files count from.
        problems: the report so far.
        backbone_gap: what to report when the backbone is asked for, but its JSON is not there.
        cached_vocab: the vocabulary in this machine's cache, where `backbone: auto` asked a model at Hugging
            Face.

    Attributes:
        tasks: the names of the tasks, in order.
    """

    def __init__(
        self,
        layers: Sequence[SettingsLayer],
        titles: Mapping[str | None, str],
        base: Path,
        problems: list[str],
        backbone_gap: str | None = None,
        cached_vocab: str | None = None,
    ) -> None:
        self.tasks = [scope for scope in titles if scope not in (None, "backbone")]
        self.base = base
        chosen = [SettingsLayer({}, "global"), *(SettingsLayer({}, "tasks", task) for task in self.tasks)]
        self._chosen = {layer.scope: layer for layer in chosen}
        # What palm chooses is weaker than all that users set, and stronger than the backbone's JSON.
        self._layers = [*layers[:-1], *chosen, *layers[-1:]]
        # By scope with their ranks, so that a look-up goes only through the layers that reach it.
        self._places: dict[str | None, dict[int, SettingsLayer]] = {}
        for number, layer in enumerate(self._layers):
            self._places.setdefault(layer.scope, {})[number] = layer
        self._backbone = {n: layer for n, layer in enumerate(self._layers) if layer.section == "backbone"}
        self._titles = titles
        self._problems = problems
        self._backbone_gap = backbone_gap
        self._cached_vocab = cached_vocab
        self._known: dict[str | None, set[str]] = {scope: set() for scope in titles}
        self._said: set[Any] = set()
        self._excused: set[str | None] = set()
        self._owners: Mapping[str, Components] = {}
        self._own: Mapping[str | None, Components] = {}

    def value(self, name: str, scope: str | None = None) -> Setting | None:
        """Return the setting of this name with its type guessed, or None; it counts as used.

        Args:
            name: the name as written.
            scope: None for the whole run, a task's name, or `"backbone"`.
        """
        parameter = Parameter(name, Any, REQUIRED, "")
        found = self._found(parameter, scope)
        if not found:
            return None
        guess: dict[str, Any] = {}
        self._convert(found, parameter, guess, required=True)
        return replace(found[0].setting, value=guess[name])

    def arguments(
        self,
        consumer: Consumer,
        scope: str | None = None,
        provided: Collection[str] = (),
        required: bool = True,
        from_backbone: bool = True,
    ) -> dict[str, Any]:
        """Return keyword arguments for a class or function, converted to its annotations.

        What is set nowhere is left out, for its default. What does not fit, or is required
        and missing, goes into the report.

        Args:
            consumer: the class or function; its signature says what it takes.
            scope: None for the whole run, a task's name, or `"backbone"`.
            provided: parameters that the caller supplies; they are left out.
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
        note = f" ({meaning.rstrip('.')})" if meaning else ""
        self.problem(f"{self._titles[scope]}: {name} is missing{note}")

    def problem(self, line: str) -> None:
        """Add a line to the report; it begins with its place."""
        self._problems.append(line)

    def excuse(self, scope: str | None) -> None:
        """Note an unknown component of a scope: of its unused settings, report only likely misspellings."""
        self._excused.add(scope)

    def place(self, name: str, scope: str | None = None) -> str | None:
        """Return the place of a setting's value, `config.yaml:7` or `--batch_size`; None if it is not set.

        Args:
            name: one of its spellings.
            scope: as for `value`.
        """
        parts = [layer.settings[name] for layer in self._reaching(scope) if name in layer.settings]
        return parts[0].origin if parts else None

    def choose(self, settings: Mapping[str, tuple[Any, str]], scope: str | None = None) -> None:
        """Set what neither files nor the command line set, in place of what was chosen before.

        Args:
            settings: name -> value, and why it is chosen, which stands where others have their place.
            scope: None for the whole run, or a task's name.
        """
        layer = self._chosen[scope]
        layer.settings = {name: Setting(value, why, self.base) for name, (value, why) in settings.items()}
        layer.won.clear()

    def chosen(self) -> list[str]:
        """Describe every chosen value that somebody received, with the reason."""
        return [
            f"{'' if scope is None else f'{scope}.'}{name} {value} ({layer.origins()[name]})"
            for scope, layer in self._chosen.items()
            for name, value in layer.received().items()
        ]

    def adopt_aliases(self, aliases: Mapping[str, str]) -> None:
        """Read the backbone's JSON by the encoder's own names, so that heads find there what they need.

        Where both spellings of one setting stand there, its own name counts, as it did for PaddlePALM: the
        file is somebody else's, and programs write both.
        """
        layer = self._layers[-1]
        settings = dict(layer.settings)
        for other, own in aliases.items():
            if other in settings:
                settings.setdefault(own, settings.pop(other))
        layer.settings = settings

    def finish(
        self,
        owners: Mapping[str, Components] = MappingProxyType({}),
        own: Mapping[str | None, Components] = MappingProxyType({}),
    ) -> None:
        """Report every setting that nobody took, and raise if there is any problem.

        Args:
            owners: setting -> the components that take it, of all that there are.
            own: scope -> the components that it has; None for all of the run.

        Raises:
            ConfigError: all problems at once.
        """
        self._owners = owners
        self._own = own
        unused = []
        for layer in sorted(self._layers, key=lambda layer: layer.scope is not None):
            excused = bool(self._excused if layer.scope is None else self._excused & {layer.scope, None})
            for name, setting in layer.settings.items():
                if layer.section == "backbone" or layer in self._chosen.values() or name in layer.used:
                    continue
                if hint := self._reason(name, layer.scope, excused):
                    unused.append(f"{setting.origin}: {hint}")
        # Those of files in the order of their lines, then those of the command line.
        raise_any([*self._problems, *sorted(unused, key=lambda line: line.startswith("--"))])

    def resolved(self) -> dict[str, Any]:
        """Return the values that were received, JSON-ready, paths absolute; a configuration in itself.

        Its sections are `global`, `tasks` (by name) and `backbone`. `read_config` takes it in
        place of all files and of the command line, and gives the same arguments.
        """
        resolved = self._sections(SettingsLayer.received)
        everything = resolved["global"]
        backbone = resolved["backbone"]
        everything["task_instance"] = self.tasks
        layer = self._layers[-1]
        backbone |= {
            name: json_ready(guessed(setting.value))
            for name, setting in layer.settings.items()
            if name not in layer.used
        }
        if self._cached_vocab is not None:  # elsewhere 'auto' finds it in that machine's cache
            everything["backbone"] = AUTO
            for section in (everything, backbone):
                if section.get("vocab_path") == self._cached_vocab:
                    del section["vocab_path"]
        return resolved

    def origins(self) -> dict[str, Any]:
        """Return the places of the values of `resolved` (`config.yaml:7`, `--batch_size`), by section."""
        return self._sections(SettingsLayer.origins)

    def _sections(self, of: Callable[[SettingsLayer], dict[str, Any]]) -> dict[str, Any]:
        """Return what a function gives for each layer, by section; a stronger layer overwrites a weaker."""
        sections: dict[str, Any] = {"global": {}, "tasks": {task: {} for task in self.tasks}, "backbone": {}}
        for layer in reversed(self._layers):
            if layer.section == "tasks":
                sections["tasks"][layer.scope] |= of(layer)
            else:
                prefix = f"{layer.scope}." if layer.scope in self.tasks else ""
                sections[layer.section] |= {prefix + name: value for name, value in of(layer).items()}
        return sections

    def printed(self) -> str:
        """Return the resolved configuration in PALM's layout."""
        return printed(self.resolved())

    def _reaching(self, scope: str | None, from_backbone: bool = True) -> list[SettingsLayer]:
        """Return the layers that reach a scope, the strongest first; the backbone's JSON reaches tasks."""
        found = self._places.get(None, {}) | self._places.get(scope, {})
        if scope is not None and from_backbone:
            found |= self._backbone
        return [found[number] for number in sorted(found)]

    def _found(self, parameter: Parameter, scope: str | None, from_backbone: bool = True) -> list[Found]:
        """Find every layer that sets a parameter, the strongest first; all of it counts as used."""
        self._known[scope] |= set(parameter.spellings)
        found = []
        for layer in self._reaching(scope, from_backbone):
            here = [Found(layer, s, layer.settings[s]) for s in parameter.spellings if s in layer.settings]
            # Used though overruled: only what nobody asks for is reported.
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
        winner = found[0]
        annotation = parameter.annotation
        try:
            value = convert_value(winner.setting, annotation)
        except Mismatch as error:
            if required or error.missing is None:
                self.problem(complaint(winner.name, winner.setting, annotation, error))
                return
            value = error.missing
        result[parameter.name] = value
        winner.layer.record(winner.name, value, declared=annotation is not Any)
        self._say_overruled(found, parameter)

    def _say_overruled(self, found: list[Found], parameter: Parameter) -> None:
        winner = found[0]
        for _, name, setting in found[1:]:
            pair = (winner.setting.origin, winner.name, setting.origin, name)
            if pair not in self._said and not _agree(winner.setting, setting, parameter):
                self._said.add(pair)
                values = shown(winner.setting.value), shown(setting.value)
                logger.info("%s = %s overrules %s (%s)", winner.place, *values, setting.origin)

    def _reason(self, name: str, task: str | None, excused: bool) -> str | None:
        """Say what is wrong with a setting that nothing used, if anything."""
        if name in FOREIGN:
            return f"nothing uses {name!r}; here it is {FOREIGN[name]}"
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
