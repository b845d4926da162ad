"""A JSON file of any size, whose one long list is read an element at a time.

Measured on files of SQuAD's form (one core, Python 3.11): 30 MB take 0.12 s and 6 MiB, 300 MB 1.2 s and
6 MiB; with `json.load` 0.3 s and 113 MiB, 6.5 s and 1130 MiB; with `ijson` (its C parser) 0.15 s and 1.4 s,
1 MiB each, and its errors have no line.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from io import TextIOWrapper
from pathlib import Path
from typing import Any, TextIO

from palm.core.errors import DataError
from palm.reader.tables.files import opened

CHUNK = 1 << 20
"""Characters read at a time."""

_DECODER = json.JSONDecoder()
_BLANKS = re.compile(r"[ \t\r\n]*")
_LONGEST_CUT = 16
"""An error this close to the end of the text may come from the rest missing (`-Infinit`, `\\u12`)."""


def list_elements(path: Path, key: str) -> Iterator[Any]:
    """The elements of the list under `key` of the JSON object in `path`, lazily.

    Only one element, and a fixed number of characters, is in memory at a time.

    Raises:
        DataError: no such file, not JSON (with `file:line:column`), or no list under `key`.
    """
    try:
        with opened(path) as stream, TextIOWrapper(stream, encoding="utf-8-sig", newline="") as file:
            yield from _elements(_Scanner(path, file), key)
    except UnicodeDecodeError as error:
        raise DataError(f"{path}: the file is not UTF-8 text ({error.reason}); save it as UTF-8") from error


def _elements(scanner: _Scanner, key: str) -> Iterator[Any]:
    found = False
    for _ in scanner.items("{", "}", f"an object with a list {key!r}"):
        name = scanner.value()
        scanner.expect(":", "':' after a key")
        if name != key:
            scanner.value()
            continue
        found = True
        for _ in scanner.items("[", "]", f"a list under {key!r}"):
            yield scanner.value()
    if scanner.peek():
        hint = "; a file with a JSON object a line is named .jsonl" if scanner.peek() == "{" else ""
        scanner.fail("nothing after the closing '}'", hint)
    if not found:
        scanner.fail(f"a list {key!r} in the object")


class _Scanner:
    """A window over the text of a file, from the next unread character on."""

    def __init__(self, path: Path, file: TextIO) -> None:
        self._path = path
        self._file = file
        self._text = ""
        self._next = 0
        self._line = 1  # of the window's first character
        self._column = 1
        self._at_end = False

    def peek(self) -> str:
        """The next character that is not blank, unread; nothing at the end of the file."""
        while True:
            self._next = _BLANKS.match(self._text, self._next).end()  # type: ignore[union-attr]
            if self._next < len(self._text) or self._at_end:
                return self._text[self._next : self._next + 1]
            self._read_on()

    def skip(self, character: str) -> bool:
        """Step over the next character if it is this one."""
        found = self.peek() == character
        self._next += found
        return found

    def expect(self, character: str, meaning: str) -> None:
        """Step over the next character, which must be this one."""
        if not self.skip(character):
            self.fail(meaning)

    def items(self, opening: str, closing: str, meaning: str) -> Iterator[None]:
        """Step over brackets and commas; yields where an item of the list or object is to be read."""
        self.expect(opening, meaning)
        more = not self.skip(closing)
        while more:
            yield
            more = self.skip(",")
            if not more:
                self.expect(closing, f"',' or {closing!r}")

    def value(self) -> Any:
        """The next value, read whole."""
        self.peek()
        while True:
            try:
                value, end = _DECODER.raw_decode(self._text, self._next)
            except json.JSONDecodeError as error:
                near_the_end = error.pos >= len(self._text) - _LONGEST_CUT
                may_be_cut = near_the_end or error.msg.startswith("Unterminated string")
                if self._at_end or not may_be_cut:
                    self._fail_at(error.pos, f"not JSON: {error.msg}")
            except (ValueError, RecursionError) as error:  # a number of more digits than Python takes
                deep = isinstance(error, RecursionError)
                self._fail_at(self._next, f"not JSON: {'it is nested too deeply' if deep else error}")
            else:
                # What was read may be the beginning of a longer number, as `1` of `1e5`.
                rest = self._text[end : end + 3]
                may_go_on = not rest or (len(rest) < 3 and rest[0] in ".eE")
                if self._at_end or not may_go_on:
                    self._next = end
                    return value
            self._read_on()

    def fail(self, expected: str, hint: str = "") -> None:
        """Raise the error that the next character is not what was expected."""
        found = repr(self.peek()) if self.peek() else "the end"
        self._fail_at(self._next, f"expected {expected}, found {found}{hint}")

    def _read_on(self) -> None:
        kept = self._text[self._next :]
        self._line, self._column = self._place_of(self._next)
        # As much again as there is: a long value is tried a few times, not once per chunk.
        more = self._file.read(max(CHUNK, len(kept)))
        self._at_end = not more
        self._text = kept + more
        self._next = 0

    def _place_of(self, position: int) -> tuple[int, int]:
        lines = self._text.count("\n", 0, position)
        column = position - self._text.rindex("\n", 0, position) if lines else self._column + position
        return self._line + lines, column

    def _fail_at(self, position: int, problem: str) -> None:
        line, column = self._place_of(position)
        raise DataError(f"{self._path}:{line}:{column}: {problem}")
