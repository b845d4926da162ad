"""Text about components: one line for each, or one component with all of its settings."""

from __future__ import annotations

import shutil
import textwrap
from collections.abc import Sequence
from itertools import groupby

from palm.cli.starter.catalogue import Entry
from palm.config.conversion import settings_of
from palm.config.run import setting_lines
from palm.lr_sched import HORIZON


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
