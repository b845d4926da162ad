"""The questions of SQuAD's JSON as the rows of a table, one article in memory at a time."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any, Literal

from palm.core.errors import DataError
from palm.reader.tables.json_stream import list_elements
from palm.reader.tables.record import Head, Refuse, TableRow, cut

Kind = type | tuple[type, ...]

_KINDS = {list: "a list", str: "a string", int: "a whole number", (str, int): "a string"}


def squad_rows(file: Path, head: Head, refuse: Refuse) -> Iterator[TableRow]:
    """The questions of a file with their contexts; the place of one is its id.

    Args:
        file: of SQuAD's form.
        head: takes the keys of the first question.
        refuse: takes the problem with an article, a paragraph or a question that is left out.

    Raises:
        DataError: not JSON, or without a question, or what `head` raises.
    """
    is_first = True
    is_refused = False

    def leave_out(error: DataError) -> None:
        nonlocal is_refused
        is_refused = True
        refuse(error)

    for number, article in enumerate(list_elements(file, "data"), start=1):
        place = f"{file}: article {number}"
        for paragraph, inner in _parts(article, "paragraphs", place, ("context", str), leave_out):
            for qa, _ in _parts(paragraph, "qas", inner, ("id", (str, int)), leave_out):
                cells = {**qa, "context": paragraph["context"]}
                if is_first:
                    head(list(cells), str(file))
                is_first = False
                yield TableRow(cells, f"{file}: question {str(qa['id'])!r}")
    if is_first and not is_refused:
        raise DataError(f"{file}: the file has no questions; expected them under data, paragraphs and qas")


def _parts(
    owner: Any, key: Literal["paragraphs", "qas"], place: str, needed: tuple[str, Kind], refuse: Refuse
) -> Iterator[tuple[Any, str]]:
    """The elements of a list in a file that have the needed field, each with its place."""
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
    """The value of an object of JSON.

    Raises:
        DataError: there is none, or one of another kind.
    """
    if not isinstance(owner, dict):
        raise DataError(f"{place}: expected an object with {name!r}, not {cut(repr(owner), 40)}")
    if name not in owner:
        raise DataError(f"{place}: no {name!r}; there is {', '.join(map(repr, owner)) or 'nothing'}")
    if not isinstance(owner[name], kind):
        raise DataError(f"{place}: {name!r} should be {_KINDS[kind]}, not {cut(repr(owner[name]), 40)}")
    return owner[name]
