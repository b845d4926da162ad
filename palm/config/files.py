"""Settings as they are written in YAML and JSON files and on the command line, each with its place."""

from __future__ import annotations

import hashlib
import json
import os
import re
import sys
import textwrap
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from palm.core.errors import ConfigError
from palm.core.io import parse_json, read_bytes
from palm.core.logging import logger
from palm.core.process import is_program

TRUE_WORDS = ("true", "yes", "on")
FALSE_WORDS = ("false", "no", "off")
NULL_WORDS = ("none", "null")

_NUMBER = re.compile(
    r"[-+]?(\.[0-9]+|[0-9][0-9_]*(\.[0-9_]*)?)([eE][-+]?[0-9]+)?|[-+]?\.(inf|Inf|INF)|\.(nan|NaN|NAN)"
)


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
    word = value.lower()
    if word in TRUE_WORDS + FALSE_WORDS:
        return word in TRUE_WORDS
    for kind in (int, number) if _NUMBER.fullmatch(value) else ():
        with suppress(ValueError):  # `int` refuses more than 4,300 digits
            return kind(value)
    return None if word in NULL_WORDS else str(value)


_URL = re.compile(r"([a-z][a-z0-9+.-]+):[\\/]{1,2}([^\\/\s]*@)?([^?\s]*)(\?[^…\s]\S*)?")
"""A URL: its protocol, its user and password, its place, and its query unless that is a digest."""


def public(text: str) -> str:
    """Return a text with its URLs without user, password and query, which may be secret.

    A query becomes a short digest, so that different ones stay different.
    """

    def query(url: re.Match[str]) -> str:
        return f"?…{hashlib.sha256(url[4].encode('utf-8', 'replace')).hexdigest()[:8]}" if url[4] else ""

    return _URL.sub(lambda url: f"{url[1]}://{url[3]}{query(url)}", text)


def public_url(url: str) -> str:
    """Return a URL without what may be secret; `full_url` finds it again, in later processes too."""
    found = _URL.match(url)
    if found is not None and (found[2] or found[4]):
        with suppress(ValueError):  # no variable can have NUL or half a surrogate pair
            os.environ[_variable(url)] = url
    return public(url)


def is_url(path: str | Path) -> bool:
    """Check whether a path is a URL; that of a `Path` has one slash of the two."""
    return _URL.match(str(path)) is not None


def data_path(path: str | Path) -> Path:
    """Return the path of data as palm keeps and shows it: a URL without what may be secret."""
    return Path(public_url(str(path)) if is_url(path) else path)


def full_url(url: str) -> str:
    """Return the URL from which `public_url` was made, or the same URL."""
    return os.environ.get(_variable(url), url)


def _variable(url: str) -> str:
    """The environment variable with a whole URL, which the processes that this one starts know as well."""
    return f"PALM_URL_{hashlib.sha256(public(url).encode('utf-8', 'replace')).hexdigest()[:16]}"


def shown(value: Any) -> str:
    """Format a value for a message; long ones are truncated."""
    if value is None:
        return "null"
    if isinstance(value, Flag):
        return "an option without a value"
    known = guessed(value)
    text = str(value) if isinstance(value, Plain) and not isinstance(known, str) else repr(known)
    text = public(text)
    return text if len(text) <= 80 else f"{text[:79]}…"


# `palm download` writes models to `pretrain/NAME`; if that is missing, a model on the Hub is not meant.
MODEL_NAME = re.compile(r"(?!pretrain/)\w[\w.-]{,95}/\w[\w.-]{,95}(@\w[\w./-]{,95})?", re.ASCII)
"""`owner/name` or `owner/name@revision`, each part at most 96 characters long."""

ADAPTER_CONFIG = "adapter_config.json"
"""The file that describes a directory of adapters."""


def names_model(value: str, folder: Path) -> bool:
    """Check whether a setting is the name of a model: it has that form, and is not a path in `folder`."""
    return MODEL_NAME.fullmatch(value) is not None and not (folder / value).exists()


# Files

MAX_FILE = 1 << 22
"""Bytes: 4 MiB, ten times a configuration that contains the labels of a large vocabulary."""

MAX_VALUES = 100_000
"""Values in a YAML file, with aliases expanded: nine lines of aliases can expand to a billion."""

ORIGIN = "  # from "
"""Separator between a value and its origin in a resolved configuration."""

_TAG = "tag:yaml.org,2002:"

_OPENED = {
    "while scanning a simple key": "; write 'name: value', with a space",
    "while scanning a quoted scalar": "; the quotation mark is not closed",
    "while parsing a flow sequence": "; the bracket is not closed, or a comma is missing",
    "while parsing a flow mapping": "; the brace is not closed, or a comma is missing",
}
"""PyYAML's context of an error -> hint; the mistake is in the context's line, not where parsing failed."""


# Other unquoted scalars become `Plain`, and their types are decided where they are used.
_RESOLVERS: dict[Any, Any] = {
    None: [(f"{_TAG}null", re.compile("^(~|null|Null|NULL|)$")), (f"{_TAG}merge", re.compile("^<<$"))]
}


class Lines(dict[str, Any]):
    """A mapping in a file.

    Attributes:
        lines: key -> its line number, from 1, if it is known.
    """

    def __init__(self) -> None:
        super().__init__()
        self.lines: dict[str, int] = {}


class _Loader(yaml.SafeLoader):
    """YAML with practical scalars: `3e-5` is a number; dates and `1:30` are strings.

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

    def value(self, node: yaml.Node) -> Any:
        """Build the Python value of a node; unquoted scalars that may be of another type become `Plain`."""
        self.num_values += 1
        if self.num_values > MAX_VALUES:
            raise ConfigError(f"{self.shown}: not YAML: more than {MAX_VALUES} values, with aliases expanded")
        if isinstance(node, yaml.SequenceNode):
            return [self.value(item) for item in node.value]
        if isinstance(node, yaml.MappingNode):
            return self._mapping(node)
        assert isinstance(node, yaml.ScalarNode)
        kind = node.tag.removeprefix(_TAG)
        if kind not in ("null", "merge", "str"):
            raise ConfigError(f"{self.place(node)}: the tag {node.tag!r} is not supported; remove it")
        plain = Plain(node.value)
        is_text = node.style is not None or plain.lower() in NULL_WORDS or isinstance(guessed(plain), str)
        return None if kind == "null" else str(plain) if is_text else plain

    def place(self, node: yaml.Node) -> str:
        """Return the file and line of a node."""
        return f"{self.shown}:{node.start_mark.line + 1}"

    def _mapping(self, node: yaml.MappingNode) -> Lines:
        found = Lines()
        merged: list[Any] = []
        for key, value in node.value:
            if not isinstance(key, yaml.ScalarNode):
                raise ConfigError(f"{self.place(key)}: a name should be a string, not a list or mapping")
            if key.tag == f"{_TAG}merge":
                content = self.value(value)
                merged += content if isinstance(content, list) else [content]
                continue
            if key.value in found:
                before = found.lines[key.value]
                self.problems.append(f"{self.place(key)}: {key.value!r} is set twice, first in line {before}")
            found[key.value] = self.value(value)
            found.lines.setdefault(key.value, key.start_mark.line + 1)
        for part in merged:
            if not isinstance(part, Lines):
                raise ConfigError(f"{self.place(node)}: << should name a mapping, not {shown(part)}")
            for name in part.keys() - found.keys():
                found[name] = part[name]
                found.lines[name] = part.lines[name]
        return found


class _Dumper(yaml.SafeDumper):
    """Dumper that quotes every string that the loader would not read as a string."""

    def ignore_aliases(self, data: Any) -> bool:  # noqa: ARG002 - the signature is PyYAML's
        return True


def _text_node(dumper: yaml.SafeDumper, text: str) -> yaml.ScalarNode:
    return dumper.represent_scalar(f"{_TAG}str", text, style=None if guessed(Plain(text)) == text else "'")


_Dumper.add_representer(str, _text_node)


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
    if origins:
        return "".join(_entry(name, value, origins.get(name)) for name, value in data.items())
    # Lines are not wrapped, because the origin follows each value as a comment.
    return yaml.dump(dict(data), Dumper=_Dumper, sort_keys=False, allow_unicode=True, width=2**16)


def _entry(name: str, value: Any, origin: Any) -> str:
    if isinstance(origin, Mapping) and origin:
        title = yaml_text({name: {}}).removesuffix(" {}\n")
        return f"{title}\n{textwrap.indent(yaml_text(value, origin), '  ')}"
    first, end, rest = yaml_text({name: value}).partition("\n")
    if isinstance(origin, str) and "\n" not in str(value):  # there, a comment would be part of the text
        first += ORIGIN + "".join(letter if letter.isprintable() else "?" for letter in origin)
    return first + end + rest


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


def read_json(path: Path) -> Lines:
    """Read the object in a JSON file; errors as in `read_yaml`, also for duplicate keys."""
    text = _text(path)
    shown = display_path(path)
    try:
        data = parse_json(text.encode(), unique=True)
    except json.JSONDecodeError as error:
        raise ConfigError(f"{shown}:{error.lineno}:{error.colno}: not JSON: {error.msg}") from None
    except (RecursionError, ValueError) as error:
        reason = "nested too deeply" if isinstance(error, RecursionError) else error
        raise ConfigError(f"{shown}: not JSON: {reason}") from None
    if not isinstance(data, dict):
        raise ConfigError(f"{shown}: should contain a JSON object, {{...}}")
    found = Lines()
    found.update(data)
    for name in found:
        places = [match.start() for match in re.finditer(rf'"{re.escape(name)}"\s*:', text)]
        if len(places) == 1:  # an inner object may have the same name
            found.lines[name] = text.count("\n", 0, places[0]) + 1
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
        if path.is_dir():
            reason = "it is a folder; name the file in it, such as config.yaml"
        raise ConfigError(f"{display_path(path)}: cannot be read: {reason}") from None


def _load(text: str, shown: str, problems: list[str]) -> Any:
    """Return the value of a YAML text; see `_Loader` for the arguments."""
    try:
        loader = _Loader(text, shown, problems)
        node = loader.get_single_node()
        return None if node is None else loader.value(node)
    except yaml.MarkedYAMLError as error:
        mark = error.context_mark if error.context in _OPENED else error.problem_mark
        line = 0 if mark is None else mark.line
        quoted = "".join(text.splitlines()[line : line + 1]).strip()[:80]
        there = f"; the line is {quoted!r}" if quoted else ""
        is_tab = "'\\t'" in str(error.problem)
        hint = "; indent with spaces, not tabs" if is_tab else _OPENED.get(str(error.context), "")
        raise ConfigError(f"{shown}:{line + 1}: not YAML: {error.problem}{there}{hint}") from None
    except RecursionError:
        raise ConfigError(f"{shown}: not YAML: nested too deeply") from None
    except yaml.YAMLError as error:
        raise ConfigError(f"{shown}: not YAML: {' '.join(str(error).split())}") from None


# The command line


class HelpRequested(Exception):  # noqa: N818 - not an error; the caller prints the help and exits
    """The arguments contain `--help` or `-h`."""


def program_arguments() -> list[str]:
    """Return the arguments of the running script; none in a notebook, an interactive session or a test."""
    return sys.argv[1:] if is_program() else []


def read_arguments(words: Sequence[str], problems: list[str]) -> dict[str, Setting]:
    """Return the settings among the arguments, by name; the last one of a name counts.

    Args:
        words: the arguments, without the program's name.
        problems: receives the arguments that are not options.

    Raises:
        HelpRequested: on `--help` or `-h`.
    """
    found: dict[str, Setting] = {}
    for name, value in _options(words):
        if value in ("--help", "-h") and name is None:
            raise HelpRequested
        if name is None:
            problems.append(f"command line: unexpected argument {value!r}; write --name value")
        else:
            found[name] = Setting(value, f"--{name}", Path.cwd())
    return found


def split_arguments(
    words: Sequence[str], own: Collection[str], flags: Collection[str] = ()
) -> tuple[list[str], list[str]]:
    """Split words into a command's options and positional arguments, and all others, which are settings.

    A value stays with its option, so `--batch_size 8 config.yaml` names one file.

    Args:
        words: all words after the command.
        own: names of the command's options.
        flags: those of them without a value, so that the next word is not taken for it.
    """
    commands: list[str] = []
    settings: list[str] = []
    given: dict[str, Any] = {}
    for name, value in _options(words, flags):
        if name is None:
            commands.append(value)
            continue
        if name not in own and shown(given.setdefault(name, value)) != shown(value):
            logger.warning("--%s is given twice: %s overrides %s", name, shown(value), shown(given[name]))
        option = f"--{name}" if isinstance(value, Flag) else f"--{name}={value}"
        (commands if name in own else settings).append(option)
    return commands, settings


def _options(words: Sequence[str], flags: Collection[str] = ()) -> Iterator[tuple[str | None, Any]]:
    """Yield (name, value) for each option (`--name=value` or `--name value`), and (None, word) for others."""
    rest = list(words)
    while rest:
        word = rest.pop(0)
        if not word.startswith("--") or word == "--help" or not word.strip("-="):
            yield None, word
            continue
        name, equals, value = word[2:].partition("=")
        task, dot, setting = name.rpartition(".")
        name = task + dot + setting.replace("-", "_")
        if equals:
            yield name, Plain(value)
        # A value may begin with a single dash, such as -1.
        elif name not in flags and rest and not rest[0].startswith("--"):
            yield name, Plain(rest.pop(0))
        else:
            yield name, Flag()
