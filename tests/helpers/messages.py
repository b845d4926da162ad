"""The facts of a message: its place and the values in it, so that a test survives another wording."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

FACT = re.compile(r"(?<!\w)'[^']*'|(?<![\w.])\w*_\w+|(?<![\w./-])\d+(?:\.\d+)?(?![\w.])")


def facts(message: str) -> str:
    """Return the first word of a message, its place, and then its quoted values, settings and numbers."""
    place, _, rest = message.partition(" ")
    return " ".join([place.removesuffix(":"), *FACT.findall(rest)])


@contextmanager
def raises(error: type[Exception], *words: str) -> Iterator[None]:
    """Expect an error whose message has all of some words."""
    with pytest.raises(error) as caught:
        yield
    assert [word for word in words if word not in str(caught.value)] == [], caught.value
