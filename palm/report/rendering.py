"""A page from its template: every text is escaped, and a name that nothing was given for is an error."""

from __future__ import annotations

import platform
from collections.abc import Callable, Mapping
from typing import Any

import torch

from palm.core.errors import PalmError
from palm.core.version import __version__

MADE_WITH = {"palm": __version__, "torch": torch.__version__, "python": platform.python_version()}


def rendered(template: str, filters: Mapping[str, Callable[..., Any]], **values: Any) -> str:
    """The HTML of a template of `palm/report/template`.

    Raises:
        PalmError: jinja2 is missing.
    """
    try:
        from jinja2 import Environment, PackageLoader, StrictUndefined
    except ImportError:
        raise PalmError("the report needs jinja2: pip install 'palm-torch[report]'") from None
    environment = Environment(
        loader=PackageLoader("palm.report", "template"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters |= filters
    return environment.get_template(template).render(**values)
