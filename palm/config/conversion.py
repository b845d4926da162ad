"""The signature of a component is the schema of its settings."""

from __future__ import annotations

import dataclasses
import errno
import inspect
import math
import os
import re
import textwrap
import types
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import cache
from operator import itemgetter
from pathlib import Path
from typing import Annotated, Any, Final, Literal, Union, get_args, get_origin

from palm.config.files import (
    FALSE_WORDS,
    NULL_WORDS,
    TRUE_WORDS,
    Flag,
    Plain,
    Setting,
    data_path,
    guessed,
    is_url,
    names_model,
    number,
    parse_yaml,
    shown,
)
from palm.core.component import FILE_NAMES, annotations_of
from palm.core.errors import PalmError

MUST_BE_FILE = "must be a file"
FilePath = Annotated[Path, MUST_BE_FILE]
"""A path of an existing file; an unmarked `Path` is only made absolute."""

MAY_BE_NAME = "may be a model's name"
ModelPath = Annotated[Path | str, MAY_BE_NAME]
"""A path, made absolute, or the name of a model on the Hugging Face Hub, kept as a string."""

MAY_BE_TABLE = "may be several files"
DataPath = Annotated[Path, MAY_BE_TABLE]
"""A path of data, made absolute: a file, folder or pattern, several of these, or an address (`s3://…`)."""

_LISTS = (list, Sequence, Collection, Iterable)
_PATHS = (Path, os.PathLike)


class Mismatch(Exception):  # noqa: N818 - callers catch it and report a line
    """A value that does not fit its annotation.

    Args:
        missing: the absolute path, if the value fits and only the file is missing.
    """

    def __init__(self, missing: Path | None = None) -> None:
        super().__init__(missing)
        self.missing = missing


def convert_value(setting: Setting, annotation: Any) -> Any:
    """Convert a value to its annotated type; relative paths refer to `setting.base`.

    Raises:
        Mismatch: it does not fit; `describe_mismatch` makes the message.
    """
    return _convert(setting.value, annotation, setting.base)


def describe_mismatch(name: str, setting: Setting, annotation: Any, error: Mismatch) -> str:
    """Return the line for the report about a value that does not fit."""
    place = setting.place(name)
    if error.missing is not None:
        return f"{place}: no such file: {error.missing} (written as {shown(setting.value)})"
    noun = type_name(annotation)
    article = "" if noun.startswith(("one of", "true or")) else "an " if noun[0] in "aeiou" else "a "
    return f"{place} should be {article}{noun}, not {shown(setting.value)}"


def type_name(annotation: Any) -> str:
    """Name an annotation in a user's words: `list of numbers`, `one of 'a', 'b'`."""
    kind = get_origin(annotation) or annotation
    args = get_args(annotation)
    if kind is Annotated:
        return {MUST_BE_FILE: "file", MAY_BE_NAME: "path or owner/name"}.get(args[1]) or type_name(args[0])
    if kind in (Union, types.UnionType):
        return " or ".join(dict.fromkeys(type_name(arg) for arg in args if arg is not type(None)))
    if kind is Literal:
        return f"one of {', '.join(map(repr, args))}"
    if kind in (dict, Mapping) and args[1:] and args[1] in _NAMES:
        return f"mapping from names to {_NAMES[args[1]]}s"
    if kind not in (*_LISTS, tuple):
        return _NAMES.get(kind, "value")
    item = type_name(args[0]) if args else "value"
    return f"list of {item if ' ' in item and item != 'whole number' else item + 's'}"


def _convert_marked(value: Any, kind: Any, marks: Sequence[object], base: Path) -> Any:
    if MAY_BE_TABLE in marks:
        return _data_path(value, base)
    if MAY_BE_NAME in marks:
        return str(value) if names_model(str(value), base) else _path(value, Path, base)
    result = _convert(value, kind, base)
    if MAY_BE_FILE in marks and isinstance(result, str) and result:
        path = base / Path(result).expanduser()
        return path.absolute() if path.is_file() else result
    if MUST_BE_FILE in marks and not result.is_file():
        raise Mismatch(result)
    return result


def _convert(value: Any, annotation: Any, base: Path) -> Any:
    whole = get_origin(annotation) or annotation
    if whole is Annotated:
        kind, *marks = get_args(annotation)
        return _convert_marked(value, kind, marks, base)
    if whole in _CONVERTERS:
        return _CONVERTERS[whole](value, annotation, base)
    # In Python 3.10, `Callable[[str], bool]` is an instance of `type` too.
    if isinstance(annotation, type) and get_origin(annotation) is None and isinstance(value, annotation):
        return value
    raise Mismatch


def _any(value: Any, annotation: Any, base: Path) -> Any:  # noqa: ARG001 - all converters are called alike
    return guessed(value)


def _none(value: Any, annotation: Any, base: Path) -> None:  # noqa: ARG001
    if not (value is None or (isinstance(value, Plain) and value.lower() in NULL_WORDS)):
        raise Mismatch


def _float(value: Any, annotation: Any, base: Path) -> float:  # noqa: ARG001
    # In Python, `True` is an int, so a learning_rate of True would be 1.
    if isinstance(value, bool) or not isinstance(value, (int, float, str)):
        raise Mismatch
    try:
        real = number(value) if isinstance(value, str) else float(value)
    except (ValueError, OverflowError):
        raise Mismatch from None
    if math.isnan(real):  # range checks do not catch NaN, which compares false with everything
        raise Mismatch
    return real


def _scalar(value: Any, annotation: Any, base: Path) -> bool | int | str:
    """Convert to a boolean, integer or string; a boolean is neither of the others."""
    if annotation is bool:
        if isinstance(value, Flag):
            return True
        if isinstance(value, str):
            value = {"1": True, "0": False}.get(value, value.lower())
            value = True if value in TRUE_WORDS else False if value in FALSE_WORDS else value
        if isinstance(value, bool):
            return value
    elif isinstance(value, (str, int, float)) and not isinstance(value, bool):
        if annotation is str:
            return str(value)
        with suppress(ValueError):
            # Not through a float, which would round integers above 2 ** 53.
            if not isinstance(value, float):
                return int(value)
        if (real := _float(value, float, base)).is_integer():
            return int(real)
    raise Mismatch


def _path(value: Any, annotation: Any, base: Path) -> Path:  # noqa: ARG001
    if not isinstance(value, (str, os.PathLike)) or not os.fspath(value):
        raise Mismatch
    path = Path(os.path.abspath(base / Path(value).expanduser()))  # noqa: PTH100 - resolve() would follow links
    try:
        path.exists()
    except OSError as error:
        if error.errno == errno.ENAMETOOLONG:  # later uses of this path would fail too
            raise Mismatch from None
    if "\0" in str(path):
        raise Mismatch
    return path


def _data_path(value: Any, base: Path) -> Path:
    """Convert to one path, in which several are separated by commas; addresses are kept as they are."""
    try:
        # A file name may contain a comma.
        parts = [value] if _path(value, Path, base).exists() else _parts(value)
    except Mismatch:
        parts = _parts(value)
    if isinstance(value, str) and value.rstrip().endswith(","):
        raise Mismatch
    paths = [data_path(part) if is_url(str(part)) else _path(part, Path, base) for part in parts]
    if not paths:
        raise Mismatch
    return Path(",".join(map(str, paths)))


def _mapping(value: Any, annotation: Any, base: Path) -> Any:
    if isinstance(value, str) and value.startswith("{"):
        value = parse_yaml(value)
    if not isinstance(value, Mapping):
        raise Mismatch
    key_kind, item_kind = get_args(annotation) or (Any, Any)
    return {_convert(k, key_kind, base): _convert(v, item_kind, base) for k, v in value.items()}


def _sequence(value: Any, annotation: Any, base: Path) -> Any:
    """Convert the items of a list, or of a tuple of any length, to their annotated type."""
    kind = next(iter(get_args(annotation)), Any)
    items = [_convert(part, kind, base) for part in _parts(value)]
    return tuple(items) if get_origin(annotation) is tuple else items


def _parts(value: Any) -> list[Any]:
    """Return the items of a list, PALM's comma string or `[a, b]` on the command line; else the one value."""
    if isinstance(value, str) and value.startswith("["):
        value = parse_yaml(value)
    if isinstance(value, (list, tuple)):
        return list(value)
    if isinstance(value, str):
        text = value.strip().removesuffix(",")  # a trailing comma is allowed, as in Python
        parts = [Plain(part.strip()) for part in text.split(",")] if text else []
        if "" not in parts:
            return list(parts)
    elif isinstance(value, (bool, int, float, os.PathLike)):
        return [value]
    raise Mismatch


def _literal(value: Any, annotation: Any, base: Path) -> Any:
    for choice in get_args(annotation):
        try:
            # By the type of each choice: `1` on the command line may be a number or a string.
            if _convert(value, type(choice), base) == choice:
                return choice
        except Mismatch:
            continue
    raise Mismatch


def _union(value: Any, annotation: Any, base: Path) -> Any:
    """Convert to the first member that fits; numbers, mappings and choices before strings, paths, lists."""
    members = list(get_args(annotation))
    if isinstance(value, str) and not isinstance(value, Plain) and str in members and Path not in members:
        return value
    failure = Mismatch()
    kinds = [get_args(m)[0] if get_origin(m) is Annotated else get_origin(m) or m for m in members]
    # PALM's `pred_output_path: ''`
    if isinstance(value, str) and not value and {Path, type(None)} <= {*kinds}:
        return None
    # Nearly everything fits a string, which is therefore tried last: `1` is a number if both are allowed.
    ranked = zip((_LENIENCY.get(kind, 0) for kind in kinds), members, strict=True)
    for _, member in sorted(ranked, key=itemgetter(0)):
        try:
            return _convert(value, member, base)
        except Mismatch as error:
            failure = error if error.missing is not None else failure
    raise failure


_LENIENCY: dict[Any, int] = {
    **dict.fromkeys((*_PATHS, Path | str), 1),
    **dict.fromkeys((str, Any, object, tuple, *_LISTS), 2),
}
"""2 for types that nearly every string fits, 1 for paths, which a string may be meant as, 0 for the rest."""

_NAMES: dict[Any, str] = {int: "whole number", float: "number", bool: "true or false", str: "string"}
_NAMES |= {Callable: "function"}
_NAMES |= dict.fromkeys(_PATHS, "path") | dict.fromkeys((dict, Mapping), "mapping")

_CONVERTERS: dict[Any, Callable[[Any, Any, Path], Any]] = {
    Any: _any,
    object: _any,
    None: _none,
    type(None): _none,
    float: _float,
    Literal: _literal,
    Union: _union,
    types.UnionType: _union,
    **dict.fromkeys(_PATHS, _path),
    **dict.fromkeys((bool, int, str), _scalar),
    **dict.fromkeys((dict, Mapping), _mapping),
    **dict.fromkeys((tuple, *_LISTS), _sequence),
}


MAY_BE_FILE = "may be a file"
"""Marks a string that becomes an absolute path if that file exists."""

Consumer = type | Callable[..., Any]


REQUIRED: Final = inspect.Parameter.empty
"""Default of a parameter without a default."""


@dataclass(frozen=True)
class Parameter:
    """One setting that a consumer accepts.

    Attributes:
        name: the parameter's own name.
        annotation: its type; `Any` if it has none.
        default: its default, or `REQUIRED`.
        doc: its entry under `Args:` in the docstring, as one line.
    """

    name: str
    annotation: Any
    default: Any
    doc: str


@cache
def settings_of(consumer: Consumer) -> dict[str, Parameter]:
    """Return the settings that a class or function accepts, by name, in the order of its signature.

    `*args` and `**kwargs` are left out. Descriptions come from `Args:` (or `Attributes:`) in docstrings.

    Raises:
        PalmError: an annotation names something that is not defined at run time.
    """
    function: Callable[..., Any] = consumer.__init__ if isinstance(consumer, type) else consumer  # type: ignore[misc]
    try:
        hints = annotations_of(consumer)
    except NameError as error:
        raise PalmError(
            f"{consumer.__module__}.{consumer.__qualname__}: an annotation cannot be read: {error}; "
            "import what it names outside of `if TYPE_CHECKING`"
        ) from None
    named = (inspect.Parameter.POSITIONAL_OR_KEYWORD, inspect.Parameter.KEYWORD_ONLY)
    signature = list(inspect.signature(function).parameters.items())
    own = signature[1:] if isinstance(consumer, type) else signature  # without `self`
    parameters = {name: parameter for name, parameter in own if parameter.kind in named}
    docs = _docs(consumer)
    fields = dataclasses.fields(consumer) if dataclasses.is_dataclass(consumer) else ()
    # Defaults from a factory, such as lists, are not in the signature.
    made = {
        field.name: field.default_factory()
        for field in fields
        if field.default_factory is not dataclasses.MISSING
    }
    # Settings that only training needs have a default for prediction.
    made |= {field.name: REQUIRED for field in fields if field.metadata.get("needed")}
    return {
        name: Parameter(
            name=name,
            annotation=_may_name_file(name, hints.get(name, Any)),
            default=made.get(name, parameter.default),
            doc=docs.get(name, ""),
        )
        for name, parameter in parameters.items()
    }


def _may_name_file(name: str, annotation: Any) -> Any:
    """Mark the annotation of a string that may name a file, judging by the name of the setting."""
    is_text = str in (annotation, *get_args(annotation)) and get_origin(annotation) is not Annotated
    return Annotated[annotation, MAY_BE_FILE] if is_text and name.endswith(FILE_NAMES) else annotation


def _docs(consumer: Consumer) -> dict[str, str]:
    """Return name -> description from `Args:` and `Attributes:` in docstrings; subclasses take precedence."""
    found: dict[str, str] = {}
    for owner in reversed(consumer.__mro__) if isinstance(consumer, type) else [consumer]:
        docstring = owner.__dict__.get("__doc__") if isinstance(owner, type) else owner.__doc__
        for section in re.findall(
            r"^(?:Args|Attributes):\n((?:[ \t]+.*\n?|\n)+)", inspect.cleandoc(docstring or ""), re.M
        ):
            for entry in re.split(r"\n(?=\S)", textwrap.dedent(section)):
                names, _, text = entry.partition(":")
                described = re.findall(r"\w+", re.sub(r"\(.*?\)", "", names))
                found |= dict.fromkeys(described, " ".join(text.split()))
    return found
