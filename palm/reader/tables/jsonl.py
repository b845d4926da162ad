"""Tables of JSON lines: an object a line."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from palm.core.errors import DataError
from palm.core.files.untrusted import unique_keys
from palm.reader.tables.delimited import not_utf8
from palm.reader.tables.files import opened
from palm.reader.tables.record import Head, Refuse, TableRow, cut


def json_rows(file: Path, head: Head, refuse: Refuse) -> Iterator[TableRow]:
    """The rows of a file of JSON lines; the first object's keys are told as its header.

    Args:
        file: in UTF-8.
        head: takes the keys and their place.
        refuse: takes the problem with a line that is left out.

    Raises:
        DataError: no such file, or what `head` raises.
    """
    is_first = True
    blank = 0
    with opened(file) as stream:
        for number, content in enumerate(stream, start=1):
            if not content.strip():
                blank = blank or number
                continue
            if blank:
                refuse(DataError(f"{file}:{blank}: a blank line, expected a JSON object; remove it"))
                blank = 0
            try:
                cells = _object(content, number)
            except DataError as error:
                refuse(DataError(f"{file}:{number}: {error}"))
                continue
            if is_first:
                head(list(cells), f"{file}:{number}")
                is_first = False
            yield TableRow(cells, f"{file}:{number}")


def _object(content: bytes, number: int) -> dict[str, Any]:
    """The object of a line; a problem with it as an error without a place."""
    try:
        cells = _DECODER.decode(content.decode("utf-8-sig" if number == 1 else "utf-8"))
    except UnicodeDecodeError as error:
        raise DataError(not_utf8(error, number)) from None
    except json.JSONDecodeError as error:
        raise DataError(f"not JSON: {error.msg} at character {error.pos + 1}") from None
    except RecursionError:
        raise DataError("not JSON: it is nested too deeply") from None
    except ValueError as error:  # a number of more digits than Python takes, or a key twice
        raise DataError(f"not JSON: {error}") from None
    if not isinstance(cells, dict):
        raise DataError(f"expected a JSON object with the columns as keys, not {cut(repr(cells), 40)}")
    return cells


_DECODER = json.JSONDecoder(object_pairs_hook=unique_keys)
