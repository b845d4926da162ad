"""The layers of a configuration, the settings that components read from them, and the unused ones."""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from types import MappingProxyType
from typing import Any, NamedTuple

from palm.config.conversion import Mismatch, convert_value, describe_mismatch
from palm.config.foreign import FOREIGN, REMOVED
from palm.config.layers import SettingsLayer, json_ready
from palm.config.printing import printed
from palm.config.schema import REQUIRED, Consumer, Parameter, settings_of
from palm.config.values import Setting, guessed, shown
from palm.core.checks import raise_any
from palm.core.registry import did_you_mean

logger = logging.getLogger("palm")

AUTO = "auto"
"""Value of `backbone` that means: the encoder named in the directory of pretrained weights."""


Components = Mapping[str, Collection[str]]
"""The setting that names a component (`reader`) -> names of components."""


class Found(NamedTuple):
    """A setting and the layer that contains it."""

    layer: SettingsLayer
    name: str
    setting: Setting

    @property
    def place(self) -> str:
        return self.setting.place(self.name)


class Config:
    """Values by precedence: command line, global file, task file, JSON file of the backbone.

    Args:
        layers: the settings of all sources, the strongest first.
        titles: scope -> the file for its settings; tasks in order.
        base: the folder that relative paths in the files refer to.
        problems: the report so far.
        backbone_gap: the problem to report if the backbone is asked for and its JSON is missing.
        cached_vocab: the vocabulary in this machine's cache, if `backbone: auto` names a model on the Hub.

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
        # palm's own choices are weaker than all settings of users, and stronger than the backbone's JSON.
        self._layers = [*layers[:-1], *chosen, *layers[-1:]]
        # By scope and rank, so that a look-up visits only the layers of its scope.
        self._places: dict[str | None, dict[int, SettingsLayer]] = {}
        for number, layer in enumerate(self._layers):
            self._places.setdefault(layer.scope, {})[number] = layer
        self._backbone = {n: layer for n, layer in enumerate(self._layers) if layer.section == "backbone"}
        self._titles = titles
        self._problems = problems
        self._backbone_gap = backbone_gap
        self._cached_vocab = cached_vocab
        self._known: dict[str | None, set[str]] = {scope: set() for scope in titles}
        self._reported: set[Any] = set()
        self._excused: set[str | None] = set()

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

        Settings without a value are left out, so their defaults apply. Values that do not fit, and missing
        values of required settings, are added to the report.

        Args:
            consumer: the class or function; its signature lists the settings.
            scope: None for the whole run, a task's name, or `"backbone"`.
            provided: parameters that the caller supplies; they are left out.
            required: False if settings may be missing and files need not exist, as with the settings of
                training in prediction.
            from_backbone: False for settings that name files or code: the backbone's JSON and directories of
                weights are not trusted with these.
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
            elif required and parameter.default is REQUIRED and (scope, name) not in self._reported:
                if self._backbone_gap and name in self._known["backbone"]:
                    continue  # the missing JSON would contain it, and is reported
                self._reported.add((scope, name))
                self.missing(name, parameter.doc, scope)
        return result

    def missing(self, name: str, meaning: str, scope: str | None = None) -> None:
        """Report a missing setting.

        Args:
            name: the setting.
            meaning: its description; may be empty.
            scope: the scope that it belongs to.
        """
        note = f" ({meaning.rstrip('.')})" if meaning else ""
        self.problem(f"{self._titles[scope]}: {name} is missing{note}")

    def problem(self, line: str) -> None:
        """Add a line to the report; it begins with its place."""
        self._problems.append(line)

    def excuse(self, scope: str | None) -> None:
        """Report only likely misspellings among unused settings of a scope, as its component is unknown."""
        self._excused.add(scope)

    def place(self, name: str, scope: str | None = None) -> str | None:
        """Return the place of a setting's value, `config.yaml:7` or `--batch_size`; None if it is not set.

        Args:
            name: one of its spellings.
            scope: as in `value`.
        """
        parts = [layer.settings[name] for layer in self._reaching(scope) if name in layer.settings]
        return parts[0].origin if parts else None

    def choose(self, settings: Mapping[str, tuple[Any, str]], scope: str | None = None) -> None:
        """Set values for settings that neither files nor the command line set; replaces earlier choices.

        Args:
            settings: name -> value, and the reason for it, which is its origin.
            scope: None for the whole run, or a task's name.
        """
        layer = self._chosen[scope]
        layer.settings = {name: Setting(value, why, self.base) for name, (value, why) in settings.items()}
        layer.won.clear()

    def chosen(self) -> list[str]:
        """Describe every value that `choose` set and a component read, with the reason."""
        return [
            f"{'' if scope is None else f'{scope}.'}{name} {value} ({layer.origins()[name]})"
            for scope, layer in self._chosen.items()
            for name, value in layer.received().items()
        ]

    def adopt_aliases(self, aliases: Mapping[str, str]) -> None:
        """Rename settings in the backbone's JSON to the encoder's own names, under which heads look them up.

        If both spellings of a setting are present, its own name counts, as in PaddlePALM: other programs
        write the file, and some write both.
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
        """Report every unused setting, and raise if there is any problem.

        Args:
            owners: setting -> the registered components that accept it.
            own: scope -> its components; None for the whole run.

        Raises:
            ConfigError: all problems at once.
        """
        unused = []
        for layer in sorted(self._layers, key=lambda layer: layer.scope is not None):
            excused = bool(self._excused if layer.scope is None else self._excused & {layer.scope, None})
            mine = own.get(layer.scope, {})
            for name, setting in layer.settings.items():
                if layer.section == "backbone" or layer in self._chosen.values() or name in layer.used:
                    continue
                if hint := self._reason(name, layer.scope, excused, owners.get(name, {}), mine):
                    unused.append(f"{setting.origin}: {hint}")
        # Settings in files in the order of their lines, then those of the command line.
        raise_any([*self._problems, *sorted(unused, key=lambda line: line.startswith("--"))])

    def resolved(self) -> dict[str, Any]:
        """Return all values that components read, JSON-ready and with absolute paths.

        The sections are `global`, `tasks` (by name) and `backbone`. `read_config` accepts the result instead
        of all files and the command line, and returns the same arguments.
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
        if self._cached_vocab is not None:  # on another machine, 'auto' finds it in the cache there
            everything["backbone"] = AUTO
            for section in (everything, backbone):
                if section.get("vocab_path") == self._cached_vocab:
                    del section["vocab_path"]
        return resolved

    def origins(self) -> dict[str, Any]:
        """Return the places of the values of `resolved` (`config.yaml:7`, `--batch_size`), by section."""
        return self._sections(SettingsLayer.origins)

    def _sections(self, of: Callable[[SettingsLayer], dict[str, Any]]) -> dict[str, Any]:
        """Return the results of a function for all layers, by section; stronger layers take precedence."""
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
        """Return the layers for a scope, the strongest first; the backbone's JSON also applies to tasks."""
        found = self._places.get(None, {}) | self._places.get(scope, {})
        if scope is not None and from_backbone:
            found |= self._backbone
        return [found[number] for number in sorted(found)]

    def _found(self, parameter: Parameter, scope: str | None, from_backbone: bool = True) -> list[Found]:
        """Return every layer's value of a parameter, the strongest first; all count as used."""
        self._known[scope] |= set(parameter.spellings)
        found = []
        for layer in self._reaching(scope, from_backbone):
            here = [Found(layer, s, layer.settings[s]) for s in parameter.spellings if s in layer.settings]
            # Overridden settings count as used too: only settings that nothing reads are reported.
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
        """Add the strongest value to `result`, or the problem with it to the report."""
        winner = found[0]
        annotation = parameter.annotation
        try:
            value = convert_value(winner.setting, annotation)
        except Mismatch as error:
            if required or error.missing is None:
                self.problem(describe_mismatch(winner.name, winner.setting, annotation, error))
                return
            value = error.missing
        result[parameter.name] = value
        winner.layer.record(winner.name, value, declared=annotation is not Any)
        self._log_overridden(found, parameter)

    def _log_overridden(self, found: list[Found], parameter: Parameter) -> None:
        winner = found[0]
        for _, name, setting in found[1:]:
            pair = (winner.setting.origin, winner.name, setting.origin, name)
            if pair not in self._reported and not _agree(winner.setting, setting, parameter):
                self._reported.add(pair)
                values = shown(winner.setting.value), shown(setting.value)
                logger.info("%s = %s overrides %s (%s)", winner.place, *values, setting.origin)

    def _reason(
        self, name: str, task: str | None, excused: bool, owners: Components, own: Components
    ) -> str | None:
        """Return the problem with an unused setting, or None.

        `owners` are the components that accept it, `own` those of the task or the run.
        """
        if name in REMOVED:
            return f"{name!r} is no longer a setting; leave it out: {REMOVED[name]}"
        if name in FOREIGN:
            return f"nothing uses {name!r}; in palm it is {FOREIGN[name]}"
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


def _listed(components: Components) -> str:
    return " and ".join(f"{kind} {', '.join(names)}" for kind, names in components.items())


def _agree(one: Setting, other: Setting, parameter: Parameter) -> bool:
    try:
        return bool(convert_value(one, parameter.annotation) == convert_value(other, parameter.annotation))
    except Mismatch:
        return False
