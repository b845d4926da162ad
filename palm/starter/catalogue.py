"""Every component that a configuration can name: those of palm, of a user's modules, and the demos."""

from __future__ import annotations

import ast
import importlib
import inspect
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from palm.core.errors import PalmError
from palm.core.registry import Registry, did_you_mean

COMPONENT_KINDS = {
    "reader": ("palm.reader", "READERS"),
    "paradigm": ("palm.paradigm", "HEADS"),
    "backbone": ("palm.backbone", "BACKBONES"),
    "metrics": ("palm.metrics", "METRICS"),
    "mixing": ("palm.mixing", "MIXINGS"),
    "optimizer": ("palm.optimizer", "OPTIMIZERS"),
    "lr_scheduler": ("palm.lr_sched", "LR_SCHEDULES"),
}
"""The setting that names a component -> the module of its registry, imported on demand, and its name."""

DEMOS = "demos"


@dataclass(frozen=True)
class Entry:
    """One component.

    Args:
        kind: the setting that names it.
        name: what the setting is then.
        summary: the first sentence of its description.
        component: its class; None for a demo.
    """

    kind: str
    name: str
    summary: str
    component: type | None = None

    @property
    def path(self) -> str:
        """The name in `palm ls`."""
        return f"{self.kind}.{self.name}"


def entries(kinds: Iterable[str] = (), modules: Sequence[str] = ()) -> list[Entry]:
    """The components of some kinds, or of all, in the order of the kinds.

    Args:
        kinds: of `COMPONENT_KINDS`, or `demos`; all where there is none.
        modules: dotted names of a user's modules, whose components come after palm's.

    Raises:
        PalmError: a module that cannot be imported.
    """
    imported = []
    for name in modules:
        try:
            imported.append(importlib.import_module(name))
        except Exception as error:  # a user's module may fail in any way
            why = f"{type(error).__name__}: {error}"
            raise PalmError(f"--module {name}: it cannot be imported: {why}") from error
    found: list[Entry] = []
    for kind in list(kinds) or [*COMPONENT_KINDS, DEMOS]:
        if kind == DEMOS:
            found += _demos()
            continue
        registry = registry_of(kind)
        by_class: dict[Any, list[str]] = {}
        for name in registry:
            by_class.setdefault(registry[name], []).append(name)
        found += [
            Entry(kind, name, summary_of(component), component)
            for component, names in by_class.items()
            for name in names
        ]
        found += [
            Entry(kind, f"{module.__name__}.{name}", summary_of(own), own)
            for module in imported
            for name, own in vars(module).items()
            if isinstance(own, type) and own.__module__ == module.__name__  # not what it imports
            if registry.holds(own) and not inspect.isabstract(own)
        ]
    return found


def registry_of(kind: str) -> Registry[Any]:
    """The registry of a kind."""
    module, name = COMPONENT_KINDS[kind]
    registry: Registry[Any] = getattr(importlib.import_module(module), name)
    return registry


def chosen(name: str, modules: Sequence[str] = ()) -> list[Entry]:
    """Find the entries of a name: a kind (`mixing`), a component (`mixing.temperature`, `temperature`).

    Raises:
        PalmError: nothing is called so.
    """
    kind, _, rest = name.partition(".")
    if name in (*COMPONENT_KINDS, DEMOS):
        return entries([name], modules)
    known = entries([kind] if kind in (*COMPONENT_KINDS, DEMOS) else (), modules)
    found = [entry for entry in known if name in (entry.name, entry.path)]
    if not found:
        names = [each for entry in known for each in (entry.path, entry.name)]
        hint = (
            did_you_mean(name, [*COMPONENT_KINDS, DEMOS, *names])
            or f"; kinds are {', '.join([*COMPONENT_KINDS, DEMOS])}"
        )
        raise PalmError(
            f"nothing is called {name!r}{hint}"
            if not rest or kind not in COMPONENT_KINDS
            else f"no {kind} is called {rest!r}{did_you_mean(name, names)}"
        )
    return found


def summary_of(component: object) -> str:
    """The first paragraph of a description, in one line, without its final full stop."""
    text = inspect.cleandoc(getattr(component, "__doc__", "") or "").split("\n\n")[0]
    return " ".join(text.split()).rstrip(".")


def _demos() -> Iterator[Entry]:
    """The demos of a checkout; an installed package has none."""
    folder = Path(__file__).resolve().parents[2] / DEMOS
    for program in sorted(folder.glob("demo*/demo.py")):
        text = ast.get_docstring(ast.parse(program.read_text(encoding="utf-8"))) or ""
        yield Entry(DEMOS, program.parent.name, " ".join(text.split()).partition(": ")[2].rstrip("."))
