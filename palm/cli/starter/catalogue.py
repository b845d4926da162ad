"""All components that a configuration can name, of palm and of a user's modules."""

from __future__ import annotations

import importlib
import inspect
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from types import ModuleType

from palm.controller.resolve import REGISTRIES
from palm.core.component import Registry, did_you_mean
from palm.core.errors import PalmError


@dataclass(frozen=True)
class Entry:
    """One component.

    Args:
        kind: the setting that selects it.
        name: the value of that setting.
        component: its class.
    """

    kind: str
    name: str
    component: type

    @property
    def path(self) -> str:
        """The name in `palm ls`."""
        return f"{self.kind}.{self.name}"

    @property
    def summary(self) -> str:
        """The first paragraph of its docstring, in one line, without the final full stop."""
        text = inspect.cleandoc(self.component.__doc__ or "").split("\n\n")[0]
        return " ".join(text.split()).rstrip(".")


def entries(kinds: Iterable[str] = REGISTRIES, modules: Sequence[str] = ()) -> list[Entry]:
    """List the components of some kinds, first palm's, then those of a user's modules (dotted names).

    Raises:
        PalmError: a module cannot be imported.
    """
    own = [_imported(name) for name in modules]
    return [Entry(kind, *named) for kind in kinds for named in _of_kind(REGISTRIES[kind], own)]


def _imported(name: str) -> ModuleType:
    try:
        return importlib.import_module(name)
    except Exception as error:  # a user's module may fail in any way
        raise PalmError(f"module {name} cannot be imported: {type(error).__name__}: {error}") from error


def _of_kind(registry: Registry[type], modules: Iterable[ModuleType]) -> Iterator[tuple[str, type]]:
    for name in registry:
        yield name, registry[name]
    for each in modules:
        for name, own in vars(each).items():
            is_own = registry.holds(own) and own.__module__ == each.__name__  # not imported there
            if is_own and not inspect.isabstract(own):
                yield f"{each.__name__}.{name}", own


def chosen(name: str, modules: Sequence[str] = ()) -> list[Entry]:
    """Find the entries for the name of a kind (`mixing`) or component (`mixing.temperature`, `temperature`).

    Raises:
        PalmError: there is no such kind or component.
    """
    kind = name.partition(".")[0]
    known = entries([kind] if kind in REGISTRIES else REGISTRIES, modules)
    found = [entry for entry in known if name in (entry.kind, entry.name, entry.path)]
    if not found:
        names = [word for entry in known for word in (entry.kind, entry.path, entry.name)]
        hint = did_you_mean(name, names) or f"; kinds are {', '.join(REGISTRIES)}"
        raise PalmError(f"there is no kind or component {name!r}{hint}")
    return found
