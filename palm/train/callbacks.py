"""Callbacks: callables that receive every event of a run, and users' own ones, given as dotted paths."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from functools import partial
from typing import Any

from palm.core.checks import raise_any
from palm.core.errors import PalmError
from palm.core.registry import imported
from palm.train.events import Event

Callback = Callable[[Any], object]
"""A callable that receives every event. It must not change the training. If it returns an event, or a list of
events, all callbacks receive these immediately, before the next callback receives the current event."""

CallbackPaths = Sequence[str] | Mapping[str, Mapping[str, Any]]
"""Dotted paths; or dotted path -> settings."""


def notify(event: Event, callbacks: Sequence[Callback]) -> None:
    """Call all callbacks with an event, in order, and immediately with the events that they return."""
    for callback in callbacks:
        answers = callback(event)
        for answer in answers if isinstance(answers, list) else (answers,):
            if isinstance(answer, Event):
                notify(answer, callbacks)


def callback_problems(callbacks: object) -> list[str]:
    """Check callbacks that were given from Python; return a sentence per problem."""
    if not isinstance(callbacks, Sequence) or not all(map(callable, callbacks)):
        return [f"callbacks should be a list of functions or other callables, not {callbacks!r}"]
    return []


def callbacks_of(given: CallbackPaths | None, place: str = "callbacks") -> list[Callback]:
    """Import callbacks: functions, called with every event and their settings as keyword arguments, or
    classes, whose instances are made with their settings and called with every event.

    Args:
        given: the value of the setting.
        place: the place and name of the setting, for messages.

    Raises:
        ConfigError: callbacks that cannot be imported, made with these settings, or called; lists all.
    """
    if given is None:
        return []
    named = given if isinstance(given, Mapping) else {path: {} for path in given}
    found = []
    problems = []
    for path, settings in named.items():
        try:
            # The user's code runs here, so its errors are reported with the place of the setting.
            what = imported("callback", path)
            settings = settings or {}
            callback = what(**settings) if isinstance(what, type) else partial(what, **settings)
            with suppress(ValueError):  # compiled code may have no signature
                if callable(callback):
                    inspect.signature(callback).bind("event")
        except (PalmError, TypeError) as error:
            problems.append(f"{place}: {path}: {error}")
            continue
        if callable(callback):
            found.append(callback)
        else:
            problems.append(f"{place}: {path} is not callable; give the class a method __call__(self, event)")
    raise_any(problems)
    return found
