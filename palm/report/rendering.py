"""HTML from templates: text is escaped, scripts are inlined, and nothing can be requested."""

from __future__ import annotations

import base64
import hashlib
import platform
from functools import cache
from typing import Any

import torch

from palm.core.version import __version__
from palm.report.charts import library
from palm.train.templates import template


@cache
def scripts() -> str:
    """Return the scripts that draw the charts: Vega, Vega-Lite and Vega-Embed."""
    return str(library("vl_convert").javascript_bundle())


def rendered(name: str, **values: Any) -> str:
    """Render a page: its text is escaped, its scripts are inlined, and it may request nothing.

    Raises:
        PalmError: altair or vl-convert is missing.
    """
    texts = [scripts(), template("palm.report", "page.js").render()]
    hashes = [base64.b64encode(hashlib.sha256(text.encode()).digest()).decode() for text in texts]
    made_with = {"palm": __version__, "torch": torch.__version__, "python": platform.python_version()}
    return template("palm.report", name).render(scripts=texts, hashes=hashes, made_with=made_with, **values)
