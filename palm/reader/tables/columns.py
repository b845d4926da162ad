"""Find a reader's columns in a file: by the setting `columns`, by the same name, or by a common synonym."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from palm.core.component import choice_problems, did_you_mean
from palm.core.errors import DataError, about

OnHeader = Callable[[Sequence[str], str, bool], Sequence[str] | None]
"""Called with a file's column names, their place, and whether other rows may have others; returns the columns
to read, or None for all."""


class TableRow(NamedTuple):
    """One row of a table: its cells by column name, and its place, such as `file:line`."""

    cells: Mapping[str, Any]
    place: str


class ClassId(int):
    """The id of a label that the file itself names, as those of the library `datasets` do."""

    name: str


def cut(text: str, length: int = 80) -> str:
    """The beginning of a text, for a message."""
    return text if len(text) <= length else text[:length] + "…"


def cell_text(value: Any) -> str:
    """The text of a label's cell, which is the same for 1, "1" and 1.0; empty for a missing value."""
    if value is None:
        return ""
    if isinstance(value, ClassId):
        return value.name
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, float) and value.is_integer():
        return str(int(value))
    return str(value)


def is_missing(value: Any) -> bool:
    """Check whether a cell is null, an empty list or blank; the text "null" is a value."""
    return value is None or (isinstance(value, (str, list)) and not (value and str(value).strip()))


TARGETS = ("label", "answers", "spans", "relations")
"""Columns that a row may lack; the row is then not used for the task."""

USUAL = {
    "text_a": ("text", "sentence", "sentence1", "premise", "question1", "utterance", "tokens", "words"),
    "text_b": ("sentence2", "hypothesis", "question2"),
    "label": ("labels", "class", "category", "intent", "sentiment", "tags", "ner_tags", "slots"),
    "answers": ("answer",),
    "spans": ("entities",),
}
"""A reader's column -> common names for it; they are ignored if a file has several of them."""


class Columns:
    """The reader's columns, found in the files of a table.

    Args:
        required: columns that every file must have.
        optional: columns that a file may have.
        named: the setting `columns`: reader's column -> the file's, with dots for nested values.
        warn: called with a message about guessed columns.

    Attributes:
        names: the columns of the last file.
    """

    def __init__(
        self,
        required: Sequence[str],
        optional: Sequence[str] = (),
        named: Mapping[str, str] | None = None,
        warn: Callable[[str], object] | None = None,
    ) -> None:
        self.required = required
        self.optional = optional
        self.named = named or {}
        self.names: Sequence[str] = ()
        self._warn = warn
        self._sources: dict[str, str] = {}
        self._unseen: set[str] = set()

    def find(self, names: Sequence[str], place: str, varies: bool = False) -> list[str]:
        """Find the reader's columns among those of a file, and return the file's columns to read.

        Args:
            names: the file's columns.
            place: the place of the header, for messages.
            varies: whether other rows may have other columns, as JSON objects may.

        Raises:
            DataError: a column is missing.
        """
        if not names:
            raise DataError(f"{place}: expected a header that names the columns ({', '.join(self.required)})")
        found = {name: self._found(name, names) for name in (*self.required, *self.optional)}
        needed = {*self.required, *self.named}
        missing = [name for name, source in found.items() if source is None and name in needed]
        if missing and not varies:
            raise DataError(f"{place}: {self._lacking(missing, names, found)}")
        self._warn_of_guesses(found, place)
        if self._warn is not None and found.get("label") == "label" and "probability" in names:
            self._warn(
                f"{place}: label and probability are columns of predictions; check that labels are true"
            )
        if varies and not self.names:
            self._unseen = {*TARGETS} & {*self.required}
        self._sources = {
            name: self._expected(name) if source is None else source
            for name, source in found.items()
            if source is not None or varies
        }
        self.names = names
        return list(dict.fromkeys(_outermost(source, names) for source in self._sources.values()))

    def _warn_of_guesses(self, found: Mapping[str, str | None], place: str) -> None:
        guesses = [f"{n}: {source}" for n, source in found.items() if source not in (None, self._expected(n))]
        if guesses and self._warn is not None:
            self._warn(f"{place}: using columns: {{{', '.join(guesses)}}}; set columns to change this")

    def _expected(self, name: str) -> str:
        """The name of a reader's column in the files according to the settings."""
        return self.named.get(name, name)

    def row(self, row: TableRow) -> TableRow:
        """The row with the reader's columns; optional ones may be absent, and targets may be None.

        Raises:
            DataError: the row lacks another column.
        """
        cells = {}
        for name, source in self._sources.items():
            value = row.cells[source] if source in row.cells else _nested(row.cells, source)
            if value is not None:
                self._unseen.discard(name)
            elif name in self.required and name not in TARGETS:
                self._unseen -= {each for each in self._unseen if self._sources[each] in row.cells}
                hint = did_you_mean(source, row.cells) or f"; the row has {cut(', '.join(row.cells))}"
                problem = "is null" if source in row.cells else f"is missing{hint}"
                raise DataError(f"{row.place}: {source!r} {problem}")
            if value is not None or name in self.required:
                cells[name] = value
        return TableRow(cells, row.place)

    def finish(self, path: Path) -> None:
        """Check after the last row that at least one row had the target.

        Raises:
            DataError: no row had it.
        """
        for name in self._unseen:
            source = self._sources[name]
            others = [name for name in self.names if name != source]
            hint = did_you_mean(source, others) or f"; the first has {cut(', '.join(self.names))}"
            raise DataError(f"{path}: no row has {source!r}{hint}")

    def _found(self, name: str, names: Sequence[str]) -> str | None:
        """The file's column for a reader's column; None if it has none."""
        source = self._expected(name)
        if _outermost(source, names) in names:
            return source
        usual = [each for each in USUAL.get(name, ()) if each in names and each not in self.named.values()]
        return usual[0] if len(usual) == 1 and name not in self.named else None

    def _lacking(self, missing: Sequence[str], names: Sequence[str], found: Mapping[str, str | None]) -> str:
        # Suggest to rename the file's column, or to correct the setting `columns` if it names a wrong one.
        first = self._expected(missing[0])
        spare = [name for name in names if name not in found.values()]
        close = cut(next((name for name in spare if did_you_mean(first, [name])), ""))
        hint = _form_hint(names)
        if close and not any("\r" in name for name in names):
            hint = f"; rename {close!r} to {first!r}, or set columns: {{{first}: {close}}}"
            hint = f"; did you mean {close!r}?" if missing[0] in self.named else hint
        elif missing[0] in self.named:
            hint = hint or f"; columns: {{{missing[0]}: …}} should be one of these names"
        lacks = ", ".join(repr(self._expected(name)) for name in missing)
        return f"the header lacks {lacks}; it names {cut(', '.join(names))}{hint}"


def _form_hint(names: Sequence[str]) -> str:
    """A hint about the format of a file whose header looks like that of another format."""
    words = [word for name in names for word in name.split()]
    if words and (words[0] == "-DOCSTART-" or re.fullmatch(r"O|[BIES][-_]\S+", words[-1])):
        return (
            "; this is CoNLL's format, one word per line: convert it to JSON lines of words and labels "
            "(docs/words.md, From CoNLL)"
        )
    if any("\r" in name for name in names):
        return "; lines end in carriage returns only; save the file with line feeds"
    if len(names) == 1 and names[0].startswith(("{", "[")):
        return "; name a file with one JSON object per line .jsonl"
    if len(names) == 1 and any(separator in names[0] for separator in ",;\t"):
        return "; separate columns with tabs, or with commas in a file named .csv"
    return ""


def column_problems(named: Mapping[str, str] | None, known: Sequence[str]) -> list[str]:
    """The problems with the setting `columns`, one line each."""
    if not isinstance(named, Mapping | None):
        return [
            about("columns", f" should be a mapping from the reader's names to the file's, not {named!r}")
        ]
    given = named or {}
    problems = [line for name in given for line in choice_problems(known, columns=name)]
    texts = [name for name, source in given.items() if name != "label" and source == given.get("label")]
    return [
        *problems,
        *(about("columns", f": {name} is {given[name]!r}, which is the label column") for name in texts),
    ]


def _outermost(source: str, names: Sequence[str]) -> str:
    """The file's column that contains a value, which may be nested."""
    return source if source in names else source.split(".")[0]


def _nested(cells: Mapping[str, Any], source: str) -> Any:
    value: Any = cells
    for key in source.split("."):
        value = value.get(key) if isinstance(value, Mapping) else None
    return value
