"""Templates of pages and of model cards; text of others is escaped in pages, and passes filters in cards."""

from __future__ import annotations

import json
from functools import cache
from html import escape
from shlex import quote
from typing import TYPE_CHECKING, Any

from palm.core.logging import printable, shown_value
from palm.core.process import duration
from palm.train.verdict import higher_is_better, minus, score_text

if TYPE_CHECKING:
    from jinja2 import Template


@cache
def template(package: str, name: str) -> Template:
    """Return a template of a package's folder `template`; HTML is escaped, other text is not."""
    from jinja2 import Environment, PackageLoader, StrictUndefined, select_autoescape

    made = Environment(
        loader=PackageLoader(package, "template"),
        autoescape=select_autoescape(["html"]),
        finalize=_shown,  # nothing has a use for control characters of the data
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
    )
    made.filters |= {
        "text": text_of,
        "code": code_of,
        "cell": cell_of,
        "block": block_of,
        "data": _data,
        "shown": shown_number,
        "score": score_text,
        "rises": higher_is_better,
        "value": shown_value,
        "duration": duration,
        "minus": minus,
        "quote": lambda path: quote(str(path)),
    }
    return made.get_template(name)


def text_of(value: str) -> str:
    """Return text of others as one line of Markdown without escapes, HTML or links."""
    line = " ".join(printable(value).split())
    return escape(line, quote=False).replace("[", "\\[").replace("`", "'")


def code_of(value: str) -> str:
    """Return text of others as code within a line of Markdown."""
    return f"`{' '.join(printable(value).replace('`', chr(39)).split())}`"


def cell_of(value: str) -> str:
    """Return text of others as a cell of a table in Markdown."""
    return text_of(value).replace("|", "\\|")


def block_of(text: str) -> str:
    """Return text of others for a block of code in Markdown; nothing in it ends the block."""
    return printable(text).replace("```", "'''")


def shown_number(value: float | str | None) -> str:
    """Format a number for readers: four significant digits, with thousands separators."""
    if value is None or isinstance(value, str):
        return value or ""
    if value == int(value) and abs(value) < 1e12:
        return minus(f"{int(value):,}")
    return minus(f"{value:,.0f}" if 1000 <= abs(value) < 1e7 else f"{value:.4g}")


def _shown(value: Any) -> Any:
    return printable(value) if type(value) is str else value


def _data(value: Any) -> str:
    """Return JSON that nothing in it can end as a script element."""
    return json.dumps(value, allow_nan=False).replace("<", "\\u003c")
