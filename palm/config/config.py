"""The layers of a configuration, the settings that components read from them, and the unused ones."""

from __future__ import annotations

import logging
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from types import MappingProxyType
from typing import Any

from palm.config.conversion import REQUIRED, Consumer, Mismatch, convert_value, describe_mismatch, settings_of
from palm.config.files import Setting, guessed, shown
from palm.config.foreign import FOREIGN, REMOVED
from palm.core.component import did_you_mean, raise_any
from palm.core.errors import Problem

logger = logging.getLogger("palm")

AUTO = "auto"
"""Value of `backbone` that means: the encoder named in the directory of pretrained weights."""

Components = Mapping[str, Collection[str]]
"""The setting that names a component (`reader`) -> names of components."""


@dataclass(eq=False)
class Layer:
    """The settings of one source.

    Attributes:
        settings: name -> setting, as written.
        scope: the task that they are for, or `backbone`; None for the whole run.
        is_optional: True for settings that need not be used: those of a backbone's JSON.
        used: names that a component reads, even if the value is overridden.
    """

    settings: dict[str, Setting]
    scope: str | None = None
    is_optional: bool = False
    used: set[str] = field(default_factory=set)


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
        return next(
            (layer.settings[name].origin for layer in self._reaching(scope) if name in layer.settings), None
        )

    def placed(self, name: str, scope: str | None = None) -> str:
        """Return the beginning of a message about a setting: its place and name."""
        found = (layer.settings[name] for layer in self._reaching(scope) if name in layer.settings)
        return next((setting.place(name) for setting in found), name)

    def choose(self, settings: Mapping[str, tuple[Any, str]], scope: str | None = None) -> None:
        """Set values that neither files nor the command line set.

        Args:
            settings: name -> value, and the reason for it, which is its origin.
            scope: None for the whole run, or a task's name.
        """
        chosen = {name: Setting(value, why, self.base) for name, (value, why) in settings.items()}
        # Weaker than all settings of users, and stronger than the backbone's JSON.
        self.layers.insert(-1, Layer(chosen, scope, is_optional=True))

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
            for name in layer.settings if not layer.is_optional else ():
                hint = self._reason(name, layer.scope, excused, owners.get(name, {}), mine)
                if name not in layer.used and hint:
                    unused.append(layer.settings[name].about(hint))
        # Settings in files in the order of their lines, then those of the command line.
        raise_any([*self._problems, *sorted(unused, key=lambda line: line.startswith("--"))])

    def _reaching(self, scope: str | None, from_backbone: bool = True) -> list[Layer]:
        """Return the layers for a scope, the strongest first; the backbone's JSON also applies to tasks."""
        scopes = {None, scope} | ({"backbone"} if scope is not None and from_backbone else set())
        return [layer for layer in self.layers if layer.scope in scopes]

    def _found(self, name: str, scope: str | None, from_backbone: bool = True) -> list[Setting]:
        """Return every layer's value of a setting, the strongest first; all count as used."""
        found = []
        for layer in self._reaching(scope, from_backbone):
            if name in layer.settings:
                # Overridden settings count as used too: only settings that nothing reads are reported.
                layer.used.add(name)
                found.append(layer.settings[name])
        return found

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
            if pair not in self._reported and not _agree(winner, setting, annotation):
                self._reported.add(pair)
                given = shown(winner.value), shown(setting.value)
                logger.info("%s = %s overrides %s (%s)", winner.place(name), *given, setting.origin)

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


def _agree(one: Setting, other: Setting, annotation: Any) -> bool:
    try:
        return bool(convert_value(one, annotation) == convert_value(other, annotation))
    except Mismatch:
        return False
