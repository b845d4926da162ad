"""The user's own observers, by dotted path."""

from __future__ import annotations

import inspect
from collections.abc import Mapping, Sequence
from contextlib import suppress
from functools import partial
from typing import Any

from palm.core.errors import ConfigError, PalmError
from palm.core.registry import imported
from palm.engine.training.events import Observer

Callbacks = Sequence[str] | Mapping[str, Mapping[str, Any]]
"""Dotted paths; or dotted path -> settings."""


def callback_problems(callbacks: object) -> list[str]:
    """List what is wrong with callbacks that were given from Python."""
    if not isinstance(callbacks, Sequence) or not all(map(callable, callbacks)):
        return [f"callbacks should be a list of functions or objects that can be called, not {callbacks!r}"]
    return []


def callbacks_of(given: Callbacks | None, place: str = "callbacks") -> list[Observer]:
    """Import callbacks: a function is called with every event, and with its settings by name; of a class,
    an object is made with its settings, and called with every event.

    Args:
        given: the setting.
        place: its place and name, for messages.

    Raises:
        ConfigError: what cannot be imported, or made with these settings, or called; all of them.
    """
    if given is None:
        return []
    named = given if isinstance(given, Mapping) else {path: {} for path in given}
    found = []
    problems = []
    for path, settings in named.items():
        try:
            # The user's code runs here, so its errors are told with the place of the setting.
            what = imported("callback", path)
            settings = settings or {}
            callback = what(**settings) if isinstance(what, type) else partial(what, **settings)
            with suppress(ValueError):  # compiled code may not tell what it takes
                if callable(callback):
                    inspect.signature(callback).bind("event")
        except (PalmError, TypeError) as error:
            problems.append(f"{place}: {path}: {error}")
            continue
        if callable(callback):
            found.append(callback)
        else:
            problems.append(f"{place}: {path} cannot be called; give the class __call__(self, event)")
    if problems:
        raise ConfigError(problems)
    return found
