"""The settings of one source, and their use by components."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from palm.config.values import Setting


@dataclass
class SettingsLayer:
    """The settings of one source, and their use by components.

    Attributes:
        settings: name -> setting, as written.
        section: the section of the resolved configuration that they belong to.
        scope: the task that they are for, or `"backbone"`; None for the whole run.
        used: names that a component reads, even if the value is overridden.
        won: names whose value a component received -> how well its type is known, and the value.
    """

    settings: Mapping[str, Setting]
    section: Literal["global", "tasks", "backbone"]
    scope: str | None = None
    used: set[str] = field(default_factory=set)
    won: dict[str, tuple[int, Any]] = field(default_factory=dict)

    def record(self, name: str, value: Any, declared: bool = True) -> None:
        """Record a value that a component received; a path is the best known type, a guess the least."""
        rank = 2 if _holds_path(value) else int(declared)
        if name not in self.won or rank > self.won[name][0]:
            self.won[name] = (rank, json_ready(value))

    def received(self) -> dict[str, Any]:
        """Return name -> value for all values that components received."""
        return {name: self.won[name][1] for name in self.settings if name in self.won}

    def origins(self) -> dict[str, str]:
        """Return name -> origin for all values that components received."""
        return {name: setting.origin for name, setting in self.settings.items() if name in self.won}


def _holds_path(value: Any) -> bool:
    return isinstance(value, Path) or (isinstance(value, (list, tuple)) and any(map(_holds_path, value)))


def json_ready(value: Any) -> Any:
    """Return the value with tuples as lists and paths as strings."""
    if isinstance(value, Mapping):
        return {str(key): json_ready(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [json_ready(item) for item in value]
    return str(value) if isinstance(value, Path) else value
