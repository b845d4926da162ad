"""HTML from templates: text is escaped, scripts are inlined, and nothing can be requested."""

from __future__ import annotations

import base64
import hashlib
import json
import platform
from functools import cache
from shlex import quote
from typing import Any

import torch
from jinja2 import Environment, PackageLoader, StrictUndefined

from palm.core.logging import printable, shown_value
from palm.core.process import duration
from palm.core.version import __version__
from palm.report.charts import library
from palm.train.verdict import higher_is_better, minus, score_text


@cache
def scripts() -> str:
    """Return the scripts that draw the charts: Vega, Vega-Lite and Vega-Embed."""
    return str(library("vl_convert").javascript_bundle())


def rendered(template: str, **values: Any) -> str:
    """Render a page: its text is escaped, its scripts are inlined, and it may request nothing.

    Raises:
        PalmError: altair or vl-convert is missing.
    """
    environment = _environment()
    texts = [scripts(), environment.get_template("page.js").render()]
    hashes = [base64.b64encode(hashlib.sha256(text.encode()).digest()).decode() for text in texts]
    made_with = {"palm": __version__, "torch": torch.__version__, "python": platform.python_version()}
    made = environment.get_template(template)
    return made.render(scripts=texts, hashes=hashes, made_with=made_with, **values)


def _environment() -> Environment:
    made = Environment(
        loader=PackageLoader("palm.report", "template"),
        autoescape=True,
        finalize=_shown,  # a page has no use for control characters of the data
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    made.filters |= {
        "shown": shown_number,
        "score": score_text,
        "value": shown_value,
        "duration": duration,
        "minus": minus,
        "data": _data,
        "rises": higher_is_better,
        "quote": lambda path: quote(str(path)),
    }
    return made


def _shown(value: Any) -> Any:
    return printable(value) if type(value) is str else value


def _data(value: Any) -> str:
    """Return JSON that nothing in it can end as a script element."""
    return json.dumps(value, allow_nan=False).replace("<", "\\u003c")


def shown_number(value: float | str | None) -> str:
    """Format a number for readers: four significant digits, with thousands separators."""
    if value is None or isinstance(value, str):
        return value or ""
    if value == int(value) and abs(value) < 1e12:
        return minus(f"{int(value):,}")
    return minus(f"{value:,.0f}" if 1000 <= abs(value) < 1e7 else f"{value:.4g}")
