"""YAML and JSON files as mappings that know the line of every key."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from palm.core.errors import ConfigError
from palm.core.io import parse_json, read_bytes

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


# `palm download` writes models to `pretrain/NAME`; if that is missing, a model on the Hub is not meant.
MODEL_NAME = re.compile(r"(?!pretrain/)\w[\w.-]{,95}/\w[\w.-]{,95}(@\w[\w./-]{,95})?", re.ASCII)
"""`owner/name` or `owner/name@revision`, each part at most 96 characters long."""

ADAPTER_CONFIG = "adapter_config.json"
"""The file that describes a directory of adapters."""


def names_model(value: str, folder: Path) -> bool:
    """Check whether a setting is the name of a model: it has that form, and is not a path in `folder`."""
    if not MODEL_NAME.fullmatch(value):
        return False
    return not (folder / value).exists()


MAX_FILE = 1 << 22
"""Bytes: 4 MiB, ten times a configuration that contains the labels of a large vocabulary."""

MAX_VALUES = 100_000
"""Values in a YAML file, with aliases expanded; so many take three seconds to read."""

_SHOWN = 80
"""Maximum number of characters of a line in a message."""

_TAG = "tag:yaml.org,2002:"
_BOOLEAN = "|".join(form for word in TRUE_WORDS + FALSE_WORDS for form in (word, word.title(), word.upper()))
_PATTERNS = {
    "null": re.compile(r"^(~|null|Null|NULL|)$"),
    "bool": re.compile(f"^({_BOOLEAN})$"),
    "int": re.compile(f"^({INTEGER.pattern})$"),
    "float": re.compile(f"^({FLOAT.pattern})$"),
    "merge": re.compile(r"^<<$"),
}
ORIGIN = "  # from "
"""Separator between a value and its origin in a resolved configuration."""

_OPENED = {
    "while scanning a simple key": "; write 'name: value', with a space",
    "while scanning a quoted scalar": "; the quotation mark is not closed",
    "while parsing a flow sequence": "; the bracket is not closed, or a comma is missing",
    "while parsing a flow mapping": "; the brace is not closed, or a comma is missing",
}
"""PyYAML's context of an error -> hint; the mistake is in the context's line, not where parsing failed."""

_RESOLVERS: dict[Any, Any] = {None: [(_TAG + name, pattern) for name, pattern in _PATTERNS.items()]}


class Lines(dict[str, Any]):
    """A mapping in a file.

    Attributes:
        lines: key -> its line number, from 1.
    """

    def __init__(self) -> None:
        super().__init__()
        self.lines: dict[str, int] = {}


class _Loader(yaml.SafeLoader):
    """YAML with practical scalars: `3e-5` is a number; dates and `1:30` are strings.

    Nine lines of aliases can expand to a billion values, so values are counted before they are built.

    Args:
        text: the document.
        shown: its name for messages.
        problems: receives duplicate keys.
    """

    yaml_implicit_resolvers = _RESOLVERS

    def __init__(self, text: str, shown: str, problems: list[str]) -> None:
        super().__init__(text)
        self.shown = shown
        self.problems = problems
        self.num_values = 0
        self.sizes: dict[int, int] = {}

    def compose_node(self, parent: yaml.Node | None, index: int) -> yaml.Node | None:
        """Compose a node, unless there are too many values."""
        before = self.num_values
        is_alias = self.check_event(yaml.AliasEvent)
        mark = self.peek_event().start_mark  # type: ignore[no-untyped-call]
        self.num_values += 1
        node = super().compose_node(parent, index) if self.num_values <= MAX_VALUES else None
        if is_alias:  # an unfinished node contains its own alias: infinite
            self.num_values += self.sizes.get(id(node), MAX_VALUES)
        if self.num_values > MAX_VALUES:
            problem = f"more than {MAX_VALUES} values, with aliases expanded"
            raise yaml.MarkedYAMLError(problem=problem, problem_mark=mark)
        self.sizes[id(node)] = self.num_values - before
        return node

    def value(self, node: yaml.Node) -> Any:
        """Build the Python value of a node; unquoted scalars become `Plain`."""
        if isinstance(node, yaml.SequenceNode):
            return [self.value(item) for item in node.value]
        if isinstance(node, yaml.MappingNode):
            return self._mapping(node)
        kind = node.tag.removeprefix(_TAG)
        if kind not in (*_PATTERNS, "str"):
            line = node.start_mark.line + 1
            raise ConfigError(f"{self.shown}:{line}: the tag {node.tag!r} is not supported; remove it")
        if kind == "null":
            return None
        return str(node.value) if kind == "str" else Plain(node.value)

    def _mapping(self, node: yaml.MappingNode) -> Lines:
        # Before merge keys (`<<`) are resolved: overriding a merged value is not a duplicate.
        seen: dict[str, int] = {}
        for key, _ in node.value:
            place = f"{self.shown}:{key.start_mark.line + 1}"
            if not isinstance(key, yaml.ScalarNode):
                raise ConfigError(f"{place}: a name should be a string, not a list or mapping")
            if key.value in seen:
                self.problems.append(f"{place}: {key.value!r} is set twice, first in line {seen[key.value]}")
            seen.setdefault(key.value, key.start_mark.line + 1)
        self.flatten_mapping(node)
        found = Lines()
        for key, value in node.value:
            found[key.value] = self.value(value)
            found.lines[key.value] = key.start_mark.line + 1
        return found


class _Dumper(yaml.SafeDumper):
    """Dumper that quotes every string that the loader would not read as a string."""

    yaml_implicit_resolvers = _RESOLVERS

    def ignore_aliases(self, data: Any) -> bool:  # noqa: ARG002 - the signature is PyYAML's
        return True


def display_path(path: Path) -> str:
    """Return a path as the user knows it: relative to the working directory if it is inside."""
    path = path.absolute()
    return (path.relative_to(Path.cwd()) if path.is_relative_to(Path.cwd()) else path).as_posix()


def yaml_text(data: Mapping[str, Any], origins: Mapping[str, Any] | None = None) -> str:
    """Return the YAML text of plain values, which `read_yaml` reads back unchanged.

    Args:
        data: the values.
        origins: their origins, nested like the values; written as comments. Those of absent values are
            skipped.
    """
    # Lines are not wrapped, because the origin follows each value as a comment.
    text = yaml.dump(dict(data), Dumper=_Dumper, sort_keys=False, allow_unicode=True, width=2**16)
    if not origins:
        return text
    lines = text.split("\n")
    _add_comments(lines, _load(text, "text", []), data, origins)
    return "\n".join(lines)


def _add_comments(
    lines: list[str], places: Lines, data: Mapping[str, Any], origins: Mapping[str, Any]
) -> None:
    for name, origin in origins.items():
        if name not in data:
            continue
        if isinstance(origin, Mapping):
            if origin:
                _add_comments(lines, places[name], data[name], origin)
        elif "\n" not in str(data[name]):  # in a multi-line string, a comment would be part of the text
            shown = "".join(letter if letter.isprintable() else "?" for letter in origin)
            lines[places.lines[name] - 1] += ORIGIN + shown


def read_yaml(path: Path, problems: list[str]) -> Lines:
    """Read the mapping in a YAML file, with unquoted numbers, booleans and the like as `Plain`.

    Args:
        path: the file, UTF-8.
        problems: receives duplicate keys.

    Raises:
        ConfigError: the file cannot be read, is not YAML, or is not a mapping.
    """
    data = _load(_text(path), display_path(path), problems)
    if data is None:
        return Lines()
    if not isinstance(data, Lines):
        raise ConfigError(f"{display_path(path)}: should contain lines of the form 'name: value'")
    return data


def parse_yaml(text: str) -> Any:
    """Parse a YAML text such as `[1, 2]`; None if it is not YAML."""
    try:
        return _load(text, "text", [])
    except ConfigError:
        return None


def read_json(path: Path, problems: list[str]) -> Lines:
    """Read the object in a JSON file; errors and reports as in `read_yaml`."""
    text = _text(path)
    shown = display_path(path)
    try:
        data = parse_json(text.encode())
    except json.JSONDecodeError as error:
        raise ConfigError(f"{shown}:{error.lineno}:{error.colno}: not JSON: {error.msg}") from None
    except (RecursionError, ValueError) as error:
        reason = "nested too deeply" if isinstance(error, RecursionError) else error
        raise ConfigError(f"{shown}: not JSON: {reason}") from None
    if not isinstance(data, dict):
        raise ConfigError(f"{shown}: should contain a JSON object, {{...}}")
    # The YAML loader knows lines too, but it refuses tabs between members and surrogate pairs, and accepts
    # much that is not JSON.
    found = Lines()
    decoder = json.JSONDecoder()
    line = 1
    counted = 0
    at = _next(text, text.index("{") + 1)
    while text[at] != "}":
        line += text.count("\n", counted, at)
        counted = at
        key, end = decoder.raw_decode(text, at)
        value, end = decoder.raw_decode(text, _next(text, end))
        if key in found:
            problems.append(f"{shown}:{line}: {key!r} is set twice, first in line {found.lines[key]}")
        found.setdefault(key, value)
        found.lines.setdefault(key, line)
        at = _next(text, end)
    return found


def _text(path: Path) -> str:
    try:
        # Line ends as in text mode, for YAML and for line numbers.
        return read_bytes(path, MAX_FILE).decode("utf-8-sig").replace("\r\n", "\n").replace("\r", "\n")
    except UnicodeDecodeError as error:
        line = error.object[: error.start].count(b"\n") + 1
        raise ConfigError(f"{display_path(path)}:{line}: not UTF-8 text; save the file as UTF-8") from None
    except (OSError, ValueError) as error:
        reason = error.strerror if isinstance(error, OSError) else error
        raise ConfigError(f"{display_path(path)}: cannot be read: {reason}") from None


def _next(text: str, at: int) -> int:
    """Return the position of the next JSON value or bracket."""
    while text[at] in " \t\r\n:,":
        at += 1
    return at


def _load(text: str, shown: str, problems: list[str]) -> Any:
    """Return the value of a YAML text; see `_Loader` for the arguments."""
    try:
        loader = _Loader(text, shown, problems)
        node = loader.get_single_node()
        return None if node is None else loader.value(node)
    except yaml.MarkedYAMLError as error:
        opened = error.context_mark if error.context in _OPENED else None
        mark = opened or error.problem_mark
        line = 0 if mark is None else mark.line
        quoted = "".join(text.splitlines()[line : line + 1]).strip()[:_SHOWN]
        there = f"; the line is {quoted!r}" if quoted else ""
        hint = (
            "; indent with spaces, not tabs"
            if "'\\t'" in str(error.problem)
            else _OPENED.get(str(error.context), "")
        )
        raise ConfigError(f"{shown}:{line + 1}: not YAML: {error.problem}{there}{hint}") from None
    except RecursionError:
        raise ConfigError(f"{shown}: not YAML: nested too deeply") from None
    except yaml.YAMLError as error:
        raise ConfigError(f"{shown}: not YAML: {' '.join(str(error).split())}") from None
