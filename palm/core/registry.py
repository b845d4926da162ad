"""Components by name, such as `bert`, `cls` or `adam` in a configuration."""

from __future__ import annotations

import difflib
import importlib
import sys
import traceback
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from typing import Any, Generic, TypeVar

from palm.core.errors import PalmError, StorageError

T = TypeVar("T")


def did_you_mean(name: str, known: Iterable[str]) -> str:
    """Return `"; did you mean 'x'?"` for the closest other one of `known`, or an empty string."""
    close = difflib.get_close_matches(name, [each for each in known if each != name], n=1, cutoff=0.6)
    return f"; did you mean {close[0]!r}?" if close else ""


def unknown(kind: str, name: object, known: Collection[str]) -> str:
    """Return the message that no `kind` has this name, with the known names and the closest one."""
    return f"no {kind} is called {name!r}; known: {', '.join(known)}{did_you_mean(str(name), known)}"


def imported(kind: str, path: str) -> Any:
    """Import the object at a dotted path, `package.module.name`.

    Args:
        kind: its kind, for messages (`"reader"`).
        path: the path.

    Raises:
        PalmError: it cannot be imported.
    """
    module, _, attribute = str(path).rpartition(".")
    if not module:
        raise PalmError(f"the {kind} {path!r} should be a dotted path, package.module.name")
    try:
        return getattr(importlib.import_module(module), attribute)
    except Exception as error:  # a user's module may raise anything
        what = str(error)
        if not isinstance(error, (ImportError, AttributeError)):
            last = traceback.extract_tb(error.__traceback__)[-1]
            # The message of a syntax error has its own line number.
            place = "" if isinstance(error, SyntaxError) else f" at {last.filename}:{last.lineno}"
            what = f"{type(error).__name__}{place}: {error}"
        if isinstance(error, ModuleNotFoundError) and module.startswith(str(error.name)):
            what += "; put it in the working directory, or add its folder to PYTHONPATH"
        raise PalmError(f"the {kind} {path!r} cannot be imported: {what}") from error


class Registry(Generic[T]):
    """Components of one kind by name.

    Args:
        kind: the kind of the entries, for messages (`"reader"`).
        base: the base class of all entries.
        setting: the setting that names an entry in a configuration (`"mixing"`); `kind` by default.
    """

    def __init__(self, kind: str, base: type, setting: str = "") -> None:
        self.kind = kind
        self.setting = setting or kind
        self._base = base
        self._entries: dict[str, T] = {}

    def register(self, *names: str) -> Callable[[T], T]:
        """Return a decorator that registers a component under one or more names."""

        def enter(component: T) -> T:
            for name in names:
                assert name not in self._entries, f"{self.kind} {name!r} is registered twice"
                self._entries[name] = component
            return component

        return enter

    def __getitem__(self, name: str) -> T:
        """Return a component by name, or import it from a dotted path, `package.module.Class`.

        Only for names from the user's own program or configuration; see `named_in_directory`.

        Raises:
            PalmError: the name is unknown, the path cannot be imported, or the object is of another kind.
        """
        if name not in self._entries and "." in name:
            return self._checked(imported(self.kind, name), name)
        if name.lower() in self._entries:  # AdamW, BERT
            return self._entries[name.lower()]
        if name not in self._entries:
            raise PalmError(unknown(self.kind, name, sorted(self._entries)))
        return self._entries[name]

    def named_in_directory(self, name: object, place: object, trust: str | Sequence[str] = ()) -> T:
        """Return the component that a file in a directory names, without importing untrusted code.

        Args:
            name: a registered name; or the dotted path of a class that the running program has already
                imported, or that `trust` covers.
            place: the file, for messages.
            trust: dotted paths of classes, modules or packages whose code may be imported and run.

        Raises:
            StorageError: the name is none of these.
            PalmError: a trusted path cannot be imported, or the object is of another kind.
        """
        if isinstance(name, str) and name in self._entries:
            return self._entries[name]
        path = name if isinstance(name, str) else ""
        trusted = [trust] if isinstance(trust, str) else trust
        if any(path == known or path.startswith(f"{known}.") for known in trusted):
            return self._checked(imported(self.kind, path), path)
        module, _, attribute = path.rpartition(".")
        # vars(), because getattr may run code in modules that import lazily.
        found = vars(sys.modules[module]).get(attribute) if module in sys.modules else None
        if self.holds(found):
            return found  # type: ignore[return-value]
        hint = f"; if you trust its code, say so: trust=[{module!r}], or --trust {module}" if module else ""
        raise StorageError(
            f"{place} names the {self.kind} {name!r}, which neither palm nor this program provides{hint}"
        )

    def _checked(self, found: Any, path: str) -> T:
        if not self.holds(found):
            base = f"{self._base.__module__}.{self._base.__qualname__}"
            raise PalmError(f"the {self.kind} {path!r} should be a subclass of {base}")
        return found  # type: ignore[no-any-return]

    def holds(self, found: object) -> bool:
        """Check whether an object is a class of this kind."""
        return isinstance(found, type) and issubclass(found, self._base)

    def name_of(self, component: T) -> str:
        """Return the registered name of a component, or its dotted path."""
        # vars(), because a subclass must not inherit `stands_for`.
        known = vars(component).get("stands_for") or component
        for name, entry in self._entries.items():
            if entry is known:
                return name
        return f"{component.__module__}.{component.__qualname__}"  # type: ignore[attr-defined]

    def __contains__(self, name: object) -> bool:
        return name in self._entries

    def __iter__(self) -> Iterator[str]:
        return iter(self._entries)
