"""The facts of a message: its place and the values in it, so that a test survives another wording."""

from __future__ import annotations

import re

FACT = re.compile(r"(?<!\w)'[^']*'|(?<![\w.])\w*_\w+|(?<![\w./-])\d+(?:\.\d+)?(?![\w.])")


def facts(message: str) -> str:
    """Return the first word of a message, its place, and then its quoted values, settings and numbers."""
    place, _, rest = message.partition(" ")
    return " ".join([place.removesuffix(":"), *FACT.findall(rest)])
