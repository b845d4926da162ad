"""Named components: what a configuration calls `bert`, `cls` or `adam`."""

from __future__ import annotations

import difflib
import importlib
import sys
import traceback
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, Generic, TypeVar

from palm.core.errors import PalmError, StorageError

T = TypeVar("T")


def did_you_mean(name: str, known: Iterable[str]) -> str:
    """`"; did you mean 'x'?"` for the closest other one of `known`, or the empty string."""
    close = difflib.get_close_matches(name, [each for each in known if each != name], n=1, cutoff=0.6)
    return f"; did you mean {close[0]!r}?" if close else ""


def imported(kind: str, path: str) -> Any:
    """Import the object of a dotted path `package.module.name`.

    Args:
        kind: what it is meant to be, for messages.
        path: the path.

    Raises:
        PalmError: it cannot be imported.
    """
    module, _, attribute = str(path).rpartition(".")
    if not module:
        raise PalmError(f"the {kind} {path!r} should be a dotted path, package.module.name")
    try:
        return getattr(importlib.import_module(module), attribute)
    except Exception as error:  # a user's module may fail in any way
        what = str(error)
        if not isinstance(error, (ImportError, AttributeError)):
            last = traceback.extract_tb(error.__traceback__)[-1]
            # A syntax error names its own line.
            place = "" if isinstance(error, SyntaxError) else f" at {last.filename}:{last.lineno}"
            what = f"{type(error).__name__}{place}: {error}"
        if isinstance(error, ModuleNotFoundError) and module.startswith(str(error.name)):
            what += "; put it into the working directory, or its folder into PYTHONPATH"
        raise PalmError(f"the {kind} {path!r} cannot be imported: {what}") from error


class Registry(Generic[T]):
    """Components of one kind by name.

    Args:
        kind: what the entries are, for messages (`"reader"`).
        base: the class that every one of them is a subclass of.
        setting: names an entry in a configuration (`"mixing"`); as `kind` where absent.
    """

    def __init__(self, kind: str, base: type, setting: str = "") -> None:
        self.kind = kind
        self.setting = setting or kind
        self._base = base
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
        """Return the component of a name, or of a dotted path `package.module.Class`, which is imported.

        Only for names that the user's own program or configuration gives; see `named_in_directory`.

        Raises:
            PalmError: nothing has that name, the path cannot be imported, or is of another kind.
        """
        if name not in self._entries and "." in name:
            return self._checked(imported(self.kind, name), name)
        if name.lower() in self._entries:  # AdamW, BERT
            return self._entries[name.lower()]
        if name not in self._entries:
            known = ", ".join(sorted(self._entries))
            raise PalmError(
                f"no {self.kind} is called {name!r}; known: {known}{did_you_mean(name, self._entries)}"
            )
        return self._entries[name]

    def named_in_directory(self, name: object, place: object, trust: str | Sequence[str] = ()) -> T:
        """Return the component that a file in a directory names; no code is imported or run for it.

        Args:
            name: a registered name; or the dotted path of a class that the running program has imported
                already, as it does for its own configuration; or one that `trust` allows.
            place: the file, for messages.
            trust: dotted paths of classes, or of modules and packages, whose code may be imported and run.

        Raises:
            StorageError: the name is none of these.
            PalmError: a path that is trusted cannot be imported, or is of another kind.
        """
        if isinstance(name, str) and name in self._entries:
            return self._entries[name]
        path = name if isinstance(name, str) else ""
        trusted = [trust] if isinstance(trust, str) else trust
        if any(path == known or path.startswith(f"{known}.") for known in trusted):
            return self._checked(imported(self.kind, path), path)
        module, _, attribute = path.rpartition(".")
        # vars(), since an attribute of a module may be computed by code, as packages that import lazily do.
        found = vars(sys.modules[module]).get(attribute) if module in sys.modules else None
        if self.holds(found):
            return found  # type: ignore[return-value]
        hint = f"; if you trust its code, say so: trust=[{module!r}], or --trust {module}" if module else ""
        raise StorageError(
            f"{place} names the {self.kind} {name!r}, which is none of palm's and not of this program{hint}"
        )

    def _checked(self, found: Any, path: str) -> T:
        if not self.holds(found):
            base = f"{self._base.__module__}.{self._base.__qualname__}"
            raise PalmError(f"{path!r} is no {self.kind}: that would be a subclass of {base}")
        return found  # type: ignore[no-any-return]

    def holds(self, found: object) -> bool:
        """Tell whether it is a class of this kind."""
        return isinstance(found, type) and issubclass(found, self._base)

    def name_of(self, component: T) -> str:
        """The name that `self[name]` gives the component for: as registered, or its dotted path."""
        # vars(), since a subclass of a variant is a component of its own.
        known = vars(component).get("stands_for") or component
        for name, entry in self._entries.items():
            if entry is known:
                return name
        return f"{component.__module__}.{component.__qualname__}"  # type: ignore[attr-defined]

    def __contains__(self, name: object) -> bool:
        return name in self._entries

    def __iter__(self) -> Iterator[str]:
        return iter(self._entries)
