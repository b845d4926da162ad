"""All components that a configuration can name, as text."""

from __future__ import annotations

import inspect
import shutil
import textwrap
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import groupby

from palm.config.conversion import settings_of
from palm.config.run import setting_lines
from palm.controller.resolve import REGISTRIES
from palm.core.component import did_you_mean
from palm.core.errors import PalmError
from palm.optimizer.lr_sched import HORIZON


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


def entries(kinds: Iterable[str] = REGISTRIES) -> list[Entry]:
    """List the components of some kinds."""
    return [Entry(kind, name, REGISTRIES[kind][name]) for kind in kinds for name in REGISTRIES[kind]]


def chosen(name: str) -> list[Entry]:
    """Find the entries for the name of a kind (`mixing`) or component (`mixing.temperature`, `temperature`).

    Raises:
        PalmError: there is no such kind or component.
    """
    known = entries()
    found = [entry for entry in known if name in (entry.kind, entry.name, entry.path)]
    if not found:
        names = [word for entry in known for word in (entry.kind, entry.path, entry.name)]
        hint = did_you_mean(name, names) or f"; kinds are {', '.join(REGISTRIES)}"
        raise PalmError(f"there is no kind or component {name!r}{hint}")
    return found


def listing(found: Sequence[Entry]) -> str:
    """Return a heading for each kind and a line for each component."""
    width = max((len(entry.name) for entry in found), default=0)
    columns = shutil.get_terminal_size((120, 24)).columns
    lines: list[str] = []
    for kind, group in groupby(found, key=lambda entry: entry.kind):
        lines += ["", f"{kind}:"]
        for entry in group:
            text = textwrap.shorten(entry.summary, max(40, columns - width - 4), placeholder=" …")
            lines.append(f"  {entry.name:{width}}  {text}".rstrip())
    return "\n".join(lines[1:])


def description(entry: Entry) -> str:
    """Describe a component with its settings: their types, defaults and meanings."""
    lines = [f"{entry.path}: {entry.summary}" if entry.summary else entry.path]
    name = f"[{entry.name}]" if entry.kind == "metrics" else entry.name
    lines.append(f"  in a configuration: {entry.kind}: {name}")
    settings = [each for each in settings_of(entry.component).values() if each.name not in HORIZON]
    if not settings:
        lines.append("  no settings")
    for setting in settings:
        lines += setting_lines(setting)
    if entry.component.__module__.startswith("palm."):
        text = (entry.component.__doc__ or "").splitlines()
        lines += [f"  {line.strip()}" for line in text if line.strip().startswith("Source:")]
    return "\n".join(lines)
