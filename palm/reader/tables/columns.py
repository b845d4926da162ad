"""From the columns of a file to those of a reader: as named, by their own names, or by a sure guess."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from palm.core.checks import choice_problems
from palm.core.errors import DataError
from palm.core.registry import did_you_mean
from palm.reader.tables.record import TableRow, cut

TARGETS = ("label", "answers", "spans", "relations")
"""Columns that a row may lack: it is then no row of the task."""

USUAL = {
    "text_a": ("text", "sentence", "sentence1", "premise", "question1", "utterance", "tokens", "words"),
    "text_b": ("sentence2", "hypothesis", "question2"),
    "label": ("labels", "class", "category", "intent", "sentiment", "tags", "ner_tags", "slots"),
    "answers": ("answer",),
    "spans": ("entities",),
}
"""A reader's column -> the names that files have for it; of several in one file, none is certain."""


class Columns:
    """The columns that a reader takes, found in the files of a table.

    Args:
        required: those that every file must have.
        optional: those that it may have.
        named: the setting `columns`: a reader's column -> the file's, with dots for what is nested.
        tell: takes a sentence about a guess.

    Attributes:
        names: the columns of the file that was looked at last.
    """

    def __init__(
        self,
        required: Sequence[str],
        optional: Sequence[str] = (),
        named: Mapping[str, str] | None = None,
        tell: Callable[[str], object] | None = None,
    ) -> None:
        self.required = required
        self.optional = optional
        self.named = named or {}
        self.names: Sequence[str] = ()
        self._tell = tell
        self._sources: dict[str, str] = {}
        self._unseen: set[str] = set()

    def head(self, names: Sequence[str], place: str, varies: bool = False) -> list[str]:
        """Look the columns up among those of a file; returns the file's columns that are needed.

        Args:
            names: the file's columns.
            place: where they stand.
            varies: whether other rows may have other columns, as objects have other keys.

        Raises:
            DataError: one is missing.
        """
        if not names:
            raise DataError(f"{place}: expected a header that names the columns ({', '.join(self.required)})")
        found = {name: self._found(name, names) for name in (*self.required, *self.optional)}
        needed = {*self.required, *self.named}
        missing = [name for name, source in found.items() if source is None and name in needed]
        if missing and not varies:
            raise DataError(f"{place}: {self._lacking(missing, names, found)}")
        self._tell_guesses(found, place)
        if varies and not self.names:
            self._unseen = {*TARGETS} & {*self.required}
        self._sources = {
            name: source or self._said(name) for name, source in found.items() if source or varies
        }
        self.names = names
        return list(dict.fromkeys(_outermost(source, names) for source in self._sources.values()))

    def _tell_guesses(self, found: Mapping[str, str | None], place: str) -> None:
        guesses = ", ".join(f"{n}: {each}" for n, each in found.items() if each not in (None, self._said(n)))
        if guesses and self._tell is not None:
            self._tell(f"{place}: taken as columns: {{{guesses}}}; set columns if they are others")

    def _said(self, name: str) -> str:
        """The name of a reader's column in the files, as far as the settings say."""
        return self.named.get(name, name)

    def row(self, row: TableRow) -> TableRow:
        """The row with the reader's columns: an optional one may be absent, a target None.

        Raises:
            DataError: it lacks another column.
        """
        cells = {}
        for name, source in self._sources.items():
            value = row.cells[source] if source in row.cells else _nested(row.cells, source)
            if value is not None:
                self._unseen.discard(name)
            elif name in self.required and name not in TARGETS:
                hint = did_you_mean(source, row.cells) or f"; there is {cut(', '.join(row.cells))}"
                problem = "is null" if source in row.cells else f"is missing{hint}"
                raise DataError(f"{row.place}: {source!r} {problem}")
            if value is not None or name in self.required:
                cells[name] = value
        return TableRow(cells, row.place)

    def finish(self, path: Path) -> None:
        """After the last row: refuse a table in which no row has the target.

        Raises:
            DataError: there is none.
        """
        for name in self._unseen:
            source = self._sources[name]
            others = [name for name in self.names if name != source]
            hint = did_you_mean(source, others) or f"; the first has {cut(', '.join(self.names))}"
            raise DataError(f"{path}: no row has {source!r}{hint}")

    def _found(self, name: str, names: Sequence[str]) -> str | None:
        """The file's column for one of the reader's; None where it has none."""
        source = self._said(name)
        if _outermost(source, names) in names:
            return source
        usual = [each for each in USUAL.get(name, ()) if each in names and each not in self.named.values()]
        return usual[0] if len(usual) == 1 and name not in self.named else None

    def _lacking(self, missing: Sequence[str], names: Sequence[str], found: Mapping[str, str | None]) -> str:
        # The name in the file is the mistake, so it is the one to be changed; in `columns`, that one.
        first = self._said(missing[0])
        spare = [name for name in names if name not in found.values()]
        close = cut(next((name for name in spare if did_you_mean(first, [name])), ""))
        hint = _form_hint(names)
        if close and not any("\r" in name for name in names):
            hint = f"; rename {close!r} to {first!r}, or set columns: {{{first}: {close}}}"
            hint = f"; did you mean {close!r}?" if missing[0] in self.named else hint
        lacks = ", ".join(repr(self._said(name)) for name in missing)
        return f"the header lacks {lacks}; it names {cut(', '.join(names))}{hint}"


def _form_hint(names: Sequence[str]) -> str:
    """Guess from a header which other form its file has, if any."""
    if any("\r" in name for name in names):
        return "; lines end in carriage returns alone; save the file with line feeds"
    if len(names) == 1 and names[0].startswith(("{", "[")):
        return "; a file with a JSON object a line is named .jsonl"
    if len(names) == 1 and any(separator in names[0] for separator in ",;\t"):
        return "; columns are separated by tabs, or by commas in a file that is named .csv"
    return ""


def column_problems(named: Mapping[str, str] | None, known: Sequence[str]) -> list[str]:
    """Return a line for every key of the setting `columns` that is no column of the reader."""
    if not isinstance(named, Mapping | None):
        return [f"columns should be a mapping from the reader's names to the file's, not {named!r}"]
    given = named or {}
    problems = [line for name in given for line in choice_problems(known, columns=name)]
    texts = [name for name, source in given.items() if name != "label" and source == given.get("label")]
    return [*problems, *(f"columns: {name} is {given[name]!r}, which has the labels" for name in texts)]


def _outermost(source: str, names: Sequence[str]) -> str:
    """The file's own column that holds a value, which may be nested in it."""
    return source if source in names else source.split(".")[0]


def _nested(cells: Mapping[str, Any], source: str) -> Any:
    value: Any = cells
    for key in source.split("."):
        value = value.get(key) if isinstance(value, Mapping) else None
    return value
