"""The questions of SQuAD's JSON as rows of a table."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Literal

from palm.core.errors import DataError
from palm.core.io import describe_error, parse_json
from palm.reader.tables.files import opened
from palm.reader.tables.record import OnHeader, Refuse, TableRow, cut

Kind = type | tuple[type, ...]

_KINDS = {list: "a list", str: "a string", int: "a whole number", (str, int): "a string"}


def squad_rows(file: Path, on_header: OnHeader, refuse: Refuse) -> Iterator[TableRow]:
    """The questions of a file with their contexts; the place of a question contains its id.

    Args:
        file: a file in SQuAD's format.
        on_header: called with the keys of the first question.
        refuse: called with the problem of an article, paragraph or question that is left out.

    Raises:
        DataError: not JSON, or an error from `on_header`.
    """
    is_first = True
    for number, article in enumerate(field_of(_content(file), "data", list, str(file)), start=1):
        place = f"{file}: article {number}"
        for paragraph, inner in _parts(article, "paragraphs", place, ("context", str), refuse):
            for qa, _ in _parts(paragraph, "qas", inner, ("id", (str, int)), refuse):
                cells = {**qa, "context": paragraph["context"]}
                if is_first:
                    on_header(list(cells), str(file))
                is_first = False
                yield TableRow(cells, f"{file}: question {str(qa['id'])!r}")


def _content(file: Path) -> Any:
    with opened(file) as stream:
        try:
            return parse_json(stream.read())
        except json.JSONDecodeError as error:
            hint = "; name a file with one JSON object per line .jsonl" if error.msg == "Extra data" else ""
            place = f"{file}:{error.lineno}:{error.colno}"
            raise DataError(f"{place}: not JSON: {error.msg}{hint}") from error
        except (ValueError, RecursionError) as error:
            raise DataError(f"{file}: cannot read the data file: {describe_error(error)}") from error


def _parts(
    owner: Any, key: Literal["paragraphs", "qas"], place: str, needed: tuple[str, Kind], refuse: Refuse
) -> Iterator[tuple[Any, str]]:
    """The elements of a list that have the needed field, each with its place."""
    try:
        parts = field_of(owner, key, list, place)
    except DataError as error:
        refuse(error)
        return
    for number, part in enumerate(parts, start=1):
        inner = f"{place}, {'paragraph' if key == 'paragraphs' else 'question'} {number}"
        try:
            field_of(part, *needed, inner)
        except DataError as error:
            refuse(error)
        else:
            yield part, inner


def field_of(owner: Any, name: str, kind: Kind, place: str) -> Any:
    """The value of a field in a JSON object.

    Raises:
        DataError: no such field, or a value of another type.
    """
    if not isinstance(owner, dict):
        raise DataError(f"{place}: expected an object with {name!r}, not {cut(repr(owner), 40)}")
    if name not in owner:
        raise DataError(f"{place}: no {name!r}; found {', '.join(map(repr, owner)) or 'nothing'}")
    if not isinstance(owner[name], kind):
        raise DataError(f"{place}: {name!r} should be {_KINDS[kind]}, not {cut(repr(owner[name]), 40)}")
    return owner[name]
