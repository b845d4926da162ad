"""Configurations and lists of settings as text for the terminal."""

from __future__ import annotations

import textwrap
from collections.abc import Collection, Iterator, Mapping, Sequence
from types import MappingProxyType
from typing import Any

from palm.config.conversion import type_name
from palm.config.schema import REQUIRED, Consumer, Parameter, settings_of


def printed(resolved: Mapping[str, Any]) -> str:
    """Format a resolved configuration in PALM's layout: headings 70 wide, names padded to 25, then a tab."""
    sections = {"global": resolved["global"], **resolved["tasks"], "backbone": resolved["backbone"]}
    lines: list[str] = []
    for title, values in sections.items():
        lines.append(f" {title} configuration ".center(70, "-"))
        for name, value in values.items():
            text = ", ".join(map(str, value)) if isinstance(value, list) else value
            lines.append(f"{name:25}\t{text}")
        lines.append("")
    return "\n".join(lines)


def help_text(
    consumers: Mapping[str, Sequence[Consumer]], provided: Mapping[Consumer, Collection[str]]
) -> str:
    """List the settings of consumers by heading, each once, with type, default and meaning.

    Those in `provided` are left out, because configurations cannot set them.
    """
    sections = []
    for heading, group in consumers.items():
        lines = [f"{heading}:"]
        for parameter in listed(group, provided):
            lines += setting_lines(parameter, "--")
        sections.append("\n".join(lines))
    return "\n\n".join(sections)


def setting_lines(parameter: Parameter, before: str = "") -> Iterator[str]:
    """Describe a setting: its name, prefixed by `before`, type and default; its meaning."""
    facts = [type_name(parameter.annotation), default_text(parameter)]
    yield f"  {before}{parameter.name}  ({', '.join(facts)})"
    if parameter.doc:
        yield textwrap.indent(textwrap.fill(parameter.doc, 94), " " * 6)


def listed(
    consumers: Sequence[Consumer], provided: Mapping[Consumer, Collection[str]] = MappingProxyType({})
) -> list[Parameter]:
    """Return the settings of several consumers, each name once, as first declared; see `help_text`."""
    found: dict[str, Parameter] = {}
    for consumer in consumers:
        for name, parameter in settings_of(consumer).items():
            if name not in provided.get(consumer, ()):
                found.setdefault(name, parameter)
    return list(found.values())


def default_text(parameter: Parameter) -> str:
    """Return `required`, or the default as it would be written in YAML."""
    default = parameter.default
    if default is REQUIRED:
        return "required"
    if default is None or isinstance(default, bool):
        return f"default {default}".lower()
    text = ", ".join(map(str, default)) if isinstance(default, (list, tuple)) else str(default)
    return f"default {text or 'empty'}"
