"""Values as written in their source: a word has no type until a parameter declares one."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

INTEGER = re.compile(r"[-+]?[0-9][0-9_]{0,399}")  # longer ones are read as floats: infinite
FLOAT = re.compile(
    r"[-+]?(\.[0-9]+|[0-9][0-9_]*(\.[0-9_]*)?)([eE][-+]?[0-9]+)?|[-+]?\.(inf|Inf|INF)|\.(nan|NaN|NAN)"
)
TRUE_WORDS = ("true", "yes", "on")
FALSE_WORDS = ("false", "no", "off")
NULL_WORDS = ("none", "null")


class Plain(str):
    """A string that may represent another type: unquoted in YAML, or from the command line."""

    __slots__ = ()


class Flag:
    """The value of an option that was given without one (`--use_ema`)."""


@dataclass(frozen=True)
class Setting:
    """One value and its place.

    Attributes:
        value: as written in the source.
        origin: its place, for messages: `tasks/mrqa.yaml:3`, `--batch_size`; empty if it is unknown.
        base: the folder that relative paths refer to.
    """

    value: Any
    origin: str
    base: Path

    def place(self, name: str) -> str:
        """Return the beginning of a message about this value: its origin and, unless included, its name."""
        return self.origin if self.origin.startswith("--") else self.about(name)

    def about(self, text: str) -> str:
        """Return a text with the place of this value, if it is known."""
        return f"{self.origin}: {text}" if self.origin else text


def number(text: str) -> float:
    """Parse a number, including YAML's `.inf` and `.nan`; ValueError if it is not one."""
    return float(re.sub(r"\.(?=inf|nan)", "", text.lower()))


def guessed(value: Any) -> Any:
    """Convert a value without a declared type: numbers, booleans and null are recognized as in YAML."""
    if isinstance(value, Mapping):
        return {str(key): guessed(item) for key, item in value.items()}
    if isinstance(value, list):
        return [guessed(item) for item in value]
    if isinstance(value, Flag):
        return True
    if not isinstance(value, Plain):
        return value
    if INTEGER.fullmatch(value):
        return int(value)
    if FLOAT.fullmatch(value):
        return number(value)
    if value.lower() in TRUE_WORDS + FALSE_WORDS:
        return value.lower() in TRUE_WORDS
    return None if value.lower() in NULL_WORDS else str(value)


def shown(value: Any) -> str:
    """Format a value for a message; long ones are truncated."""
    if value is None:
        return "null"
    if isinstance(value, Flag):
        return "an option without a value"
    known = guessed(value)
    text = str(value) if isinstance(value, Plain) and not isinstance(known, str) else repr(known)
    return text if len(text) <= 80 else f"{text[:79]}…"


def flattened(facts: Mapping[str, Any]) -> dict[str, Any]:
    """Flatten each component to its name and its settings, as in a configuration."""
    found: dict[str, Any] = {}
    for name, value in facts.items():
        is_component = isinstance(value, Mapping) and set(value) == {"name", "settings"}
        found |= {name: value["name"], **value["settings"]} if is_component else {name: value}
    return found


def json_ready(value: Any) -> Any:
    """Return the value with tuples as lists and paths as strings."""
    if isinstance(value, Mapping):
        return {str(key): json_ready(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [json_ready(item) for item in value]
    return str(value) if isinstance(value, Path) else value
