"""YAML and JSON files as mappings that remember the line of every key."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import yaml

from palm.config.problems import Problems
from palm.config.values import FALSE_WORDS, FLOAT, INTEGER, TRUE_WORDS, Plain
from palm.core.errors import ConfigError

_TAG = "tag:yaml.org,2002:"
_BOOLEAN = "|".join(form for word in TRUE_WORDS + FALSE_WORDS for form in (word, word.title(), word.upper()))
_PATTERNS = {
    "null": re.compile(r"^(~|null|Null|NULL|)$"),
    "bool": re.compile(f"^({_BOOLEAN})$"),
    "int": re.compile(f"^({INTEGER.pattern})$"),
    "float": re.compile(f"^({FLOAT.pattern})$"),
    "merge": re.compile(r"^<<$"),
}
_RESOLVERS: dict[Any, Any] = {None: [(_TAG + name, pattern) for name, pattern in _PATTERNS.items()]}


class Lines(dict[str, Any]):
    """A mapping of a file.

    Attributes:
        lines: key -> the number of its line, counted from 1.
    """

    def __init__(self) -> None:
        super().__init__()
        self.lines: dict[str, int] = {}


class _Loader(yaml.SafeLoader):
    """YAML whose numbers are those people write: `3e-5` is one; dates and `1:30` are text."""

    yaml_implicit_resolvers = _RESOLVERS


class _Dumper(yaml.SafeDumper):
    """Quotes every string that the loader would take for something else."""

    yaml_implicit_resolvers = _RESOLVERS

    def ignore_aliases(self, data: Any) -> bool:  # noqa: ARG002 - the signature is PyYAML's
        return True


def displayed(path: Path) -> str:
    """The path as its user knows it: relative to the working directory where it lies below it."""
    path = path.absolute()
    return (path.relative_to(Path.cwd()) if path.is_relative_to(Path.cwd()) else path).as_posix()


def yaml_text(data: Mapping[str, Any]) -> str:
    """The YAML text of plain values, which `read_yaml` reads back unchanged."""
    return yaml.dump(dict(data), Dumper=_Dumper, sort_keys=False, allow_unicode=True, width=2**16)


def read_yaml(path: Path, problems: Problems) -> Lines:
    """The mapping of a YAML file; its unquoted numbers, booleans and the like as `Plain`.

    Args:
        path: the file, UTF-8.
        problems: receives the keys that occur twice.

    Raises:
        ConfigError: the file cannot be read, is not YAML, or is no mapping.
    """
    text = _text(path)
    data = _Document(displayed(path), problems).built(text)
    if data is None:
        return Lines()
    if not isinstance(data, Lines):
        raise ConfigError([f"{displayed(path)}: should hold lines of the form 'name: value'"])
    return data


def parsed_yaml(text: str) -> Any:
    """The value of a YAML text such as `[1, 2]`; None where it is not YAML."""
    try:
        return _Document("text", Problems()).built(text)
    except ConfigError:
        return None


def read_json(path: Path, problems: Problems) -> Lines:
    """The object of a JSON file; raises and reports as `read_yaml` does."""
    text, shown = _text(path), displayed(path)
    try:
        data = json.loads(text)
    except json.JSONDecodeError as error:
        raise ConfigError([f"{shown}:{error.lineno}:{error.colno}: not JSON: {error.msg}"]) from None
    if not isinstance(data, dict):
        raise ConfigError([f"{shown}: should hold a JSON object, {{...}}"])
    return _located(text, shown, problems)


def _text(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8-sig")
    except UnicodeDecodeError as error:
        line = error.object[: error.start].count(b"\n") + 1
        raise ConfigError([f"{displayed(path)}:{line}: not UTF-8 text; save the file as UTF-8"]) from None
    except OSError as error:
        raise ConfigError([f"{displayed(path)}: cannot be read: {error.strerror}"]) from None


def _located(text: str, shown: str, problems: Problems) -> Lines:
    """The members of a valid JSON object, each with its line.

    The YAML loader knows lines as well, but not tabs between members, nor pairs of surrogates, and takes much
    that is no JSON.
    """
    found, decoder = Lines(), json.JSONDecoder()
    at = _next(text, text.index("{") + 1)
    while text[at] != "}":
        line = text.count("\n", 0, at) + 1
        key, end = decoder.raw_decode(text, at)
        value, end = decoder.raw_decode(text, _next(text, end))
        if key in found:
            problems.add(f"{shown}:{line}: {key!r} is set twice, first in line {found.lines[key]}")
        else:
            found[key], found.lines[key] = value, line
        at = _next(text, end)
    return found


def _next(text: str, at: int) -> int:
    """The position of the next JSON value or bracket."""
    while text[at] in " \t\r\n:,":
        at += 1
    return at


class _Document:
    """One YAML text on its way to Python values."""

    def __init__(self, shown: str, problems: Problems) -> None:
        self.shown = shown
        self.problems = problems

    def built(self, text: str) -> Any:
        try:
            loader = _Loader(text)
            node = loader.get_single_node()
            return None if node is None else self._value(node, loader)
        except yaml.MarkedYAMLError as error:
            raise ConfigError([self._explained(error, text)]) from None
        except (yaml.YAMLError, RecursionError) as error:
            raise ConfigError([f"{self.shown}: not YAML: {' '.join(str(error).split())}"]) from None

    def _explained(self, error: yaml.MarkedYAMLError, text: str) -> str:
        line = error.problem_mark.line if error.problem_mark else 0
        lines = text.splitlines()
        there = f"; the line is {lines[line].strip()!r}" if line < len(lines) else ""
        hint = "; indent with spaces, not tabs" if "'\\t'" in str(error.problem) else ""
        return f"{self.shown}:{line + 1}: not YAML: {error.problem}{there}{hint}"

    def _value(self, node: yaml.Node, loader: _Loader) -> Any:
        if isinstance(node, yaml.MappingNode):
            return self._mapping(node, loader)
        if isinstance(node, yaml.SequenceNode):
            return [self._value(item, loader) for item in node.value]
        return self._scalar(node)

    def _scalar(self, node: yaml.Node) -> Any:
        kind = node.tag.removeprefix(_TAG)
        if kind not in ("null", "bool", "int", "float", "str", "merge"):
            line = node.start_mark.line + 1
            raise ConfigError([f"{self.shown}:{line}: the tag {node.tag!r} has no meaning here"])
        if kind == "null":
            return None
        return str(node.value) if kind == "str" else Plain(node.value)

    def _mapping(self, node: yaml.MappingNode, loader: _Loader) -> Lines:
        self._check_keys(node)
        loader.flatten_mapping(node)
        found = Lines()
        for key, value in node.value:
            found[key.value] = self._value(value, loader)
            found.lines[key.value] = key.start_mark.line + 1
        return found

    def _check_keys(self, node: yaml.MappingNode) -> None:
        seen: dict[str, int] = {}
        for key, _ in node.value:
            line = key.start_mark.line + 1
            if not isinstance(key, yaml.ScalarNode):
                raise ConfigError([f"{self.shown}:{line}: a name should be text, not a list or mapping"])
            if key.value in seen:
                self.problems.add(
                    f"{self.shown}:{line}: {key.value!r} is set twice, first in line {seen[key.value]}"
                )
            seen.setdefault(key.value, line)
