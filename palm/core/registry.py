"""Named components: what a configuration calls `bert`, `cls` or `adam`."""

from __future__ import annotations

import difflib
import importlib
from collections.abc import Callable, Iterable, Iterator
from typing import Any, Generic, TypeVar

from palm.core.errors import PalmError

T = TypeVar("T")


def did_you_mean(name: str, known: Iterable[str]) -> str:
    """`"; did you mean 'x'?"` for the closest of `known`, or the empty string."""
    close = difflib.get_close_matches(name, list(known), n=1, cutoff=0.6)
    return f"; did you mean {close[0]!r}?" if close else ""


def imported(kind: str, path: str) -> Any:
    """What a dotted path `package.module.name` stands for.

    Args:
        kind: what it is meant to be, for messages.
        path: the path.

    Raises:
        PalmError: it cannot be imported.
    """
    module, _, attribute = path.rpartition(".")
    try:
        return getattr(importlib.import_module(module), attribute)
    except (ImportError, AttributeError, ValueError) as error:
        raise PalmError(f"the {kind} {path!r} cannot be imported: {error}") from error


class Registry(Generic[T]):
    """Components of one kind by name.

    Args:
        kind: what the entries are, for messages (`"reader"`).
    """

    def __init__(self, kind: str) -> None:
        self.kind = kind
        self._entries: dict[str, T] = {}

    def register(self, *names: str) -> Callable[[T], T]:
        """Decorator that enters a component under one or more names."""

        def enter(component: T) -> T:
            for name in names:
                assert name not in self._entries, f"{self.kind} {name!r} is registered twice"
                self._entries[name] = component
            return component

        return enter

    def __getitem__(self, name: str) -> T:
        """The component of a name, or of a dotted path `package.module.Class`.

        Raises:
            PalmError: nothing has that name, or the path cannot be imported.
        """
        if name not in self._entries and "." in name:
            return imported(self.kind, name)  # type: ignore[no-any-return]
        if name not in self._entries:
            known = ", ".join(sorted(self._entries))
            raise PalmError(
                f"no {self.kind} is called {name!r}; known: {known}{did_you_mean(name, self._entries)}"
            )
        return self._entries[name]

    def name_of(self, component: T) -> str:
        """The name that `self[name]` gives the component for: as registered, or its dotted path."""
        for name, entry in self._entries.items():
            if entry is component:
                return name
        return f"{component.__module__}.{component.__qualname__}"  # type: ignore[attr-defined]

    def __contains__(self, name: object) -> bool:
        return name in self._entries

    def __iter__(self) -> Iterator[str]:
        return iter(self._entries)
