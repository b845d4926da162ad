"""Write the reference pages from signatures, docstrings and argparse: `python scripts/make_reference.py`.

docs/reference_commands.md has the commands and settings, docs/reference_python.md the names of `import palm`.
"""

from __future__ import annotations

import argparse
import inspect
import re
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import palm
from palm.cli import COMMANDS
from palm.config.conversion import Parameter, type_name
from palm.config.run import default_text, listed
from palm.controller.resolve import HELP, NO_SETTINGS
from palm.core.errors import EXIT_CODES

DOCS = Path(__file__).resolve().parents[1] / "docs"
SHARED = 3
"""Number of commands from which an option is described once for all of them."""

INTERNAL = {"directory", "load_state_dict", "output_of", "outputs", "state_dict", "steps"}
"""Methods of the classes that only palm itself calls."""

NOTE = "<!-- written by scripts/make_reference.py -->"


def table(heads: list[str], rows: list[list[str]]) -> str:
    """Return a Markdown table."""
    cells = [heads, ["---"] * len(heads), *rows]
    return "\n".join(f"| {' | '.join(cell.replace('|', '/') for cell in row)} |" for row in cells)


def one_line(text: str | None) -> str:
    return " ".join((text or "").split())


def commands_page() -> str:
    """Return the page of commands, exit codes and settings."""
    codes = [[str(int(code)), meaning] for code, meaning in EXIT_CODES.items()]
    parts = [
        f"# Commands and settings\n\nFor people who look up an option or a setting. {NOTE}",
        "Every command also takes `--quiet`, `--verbose` and `--help`. Those marked with *settings* take "
        "every setting below as an option: `--learning_rate 1e-4`, or `--TASK.batch_size 8` for one task.",
        table(["exit code", "meaning"], [*codes, ["128 + N", "ended by signal N"]]),
    ]
    options = {name: list(_options(command.parser())) for name, command in COMMANDS.items()}
    times = Counter(tuple(row) for rows in options.values() for row in rows)
    shared = [list(row) for row, count in times.items() if count >= SHARED]
    parts.append("## Options of several commands\n\n" + table(["option", "meaning"], shared))
    for name, command in COMMANDS.items():
        parts.append(f"## palm {name}\n\n{one_line(inspect.getdoc(command.run) or command.help + '.')}")
        if command.takes_settings:
            parts[-1] += " Takes *settings*."
        if also := [row[0] for row in options[name] if row in shared]:
            parts[-1] += f" Also {', '.join(also)}."
        if rows := [row for row in options[name] if row not in shared]:
            parts.append(table(["option", "meaning"], rows))
    parts.append("## Settings\n\nIn a configuration, or as options; a task's settings belong into its file.")
    for heading, consumers in HELP.items():
        rows = [_setting(setting) for setting in listed(consumers, NO_SETTINGS)]
        settings = table(["setting", "type (default)", "meaning"], rows)
        parts.append(f"### {heading.capitalize()}\n\n{settings}")
    return "\n\n".join(parts) + "\n"


def _options(parser: argparse.ArgumentParser) -> Iterator[list[str]]:
    for action in parser._actions:
        if action.help in (None, argparse.SUPPRESS) or action.dest == "help":
            continue
        value = action.metavar or action.dest.upper()
        if action.choices:
            value = ",".join(map(str, action.choices))
        name = f"{action.option_strings[0]} {value}" if action.option_strings else str(value)
        name = action.option_strings[0] if action.nargs == 0 else name
        yield [f"`{name}`", one_line(action.help).replace("%%", "%")]


def _setting(each: Parameter) -> list[str]:
    default = default_text(each).removeprefix("default ")
    shown = "" if default == "none" else f" ({default})"
    return [f"`{each.name}`", f"{type_name(each.annotation)}{shown}", each.doc]


def python_page() -> str:
    """Return the page of the names of `import palm`."""
    values = {name: getattr(palm, name) for name in palm.__all__ if name != "__version__"}
    parts = [
        f"# Python API\n\nFor people who use palm from a program: the names of `import palm`. {NOTE}",
        "`palm ls` lists components by their registry names, with [settings](reference_commands.md#settings)."
        " Names of PaddlePALM 2.x are explained on [from PaddlePALM](from_paddlepalm.md).",
    ]
    for name, value in values.items():
        if not isinstance(value, ModuleType) and not value.__module__.startswith("palm.compat"):
            parts.append(f"## palm.{name}\n\n{_described(name, value)}")
            if inspect.isclass(value):
                parts += [
                    f"### {name}.{each}\n\n{_described(each, method)}" for each, method in _methods(value)
                ]
    modules = [[f"`palm.{name}`", one_line(v.__doc__)] for name, v in values.items() if inspect.ismodule(v)]
    parts.append("## Packages\n\n" + table(["package", "content"], modules))
    return "\n\n".join(parts) + "\n"


def _methods(cls: type) -> Iterator[tuple[str, Any]]:
    for name, value in vars(cls).items():
        if not name.startswith("_") and name not in INTERNAL and inspect.isfunction(value) and value.__doc__:
            yield name, value


def _described(name: str, value: Any) -> str:
    """Return the signature and the docstring; what follows the first paragraph stands as it was written."""
    first, _, rest = (inspect.getdoc(value) or "").partition("\n\n")
    signature = "" if name.endswith("Error") else str(inspect.signature(value))
    shown = re.sub(r"\(self(, )?", "(", f"{name}{signature}")
    shown = re.sub(r"(: |-> )'([^']*)'", r"\1\2", shown)  # annotations are strings there
    blocks = [f"```text\n{shown}\n```", one_line(first)]
    if rest:
        blocks.append(f"```text\n{rest.strip()}\n```")
    return "\n\n".join(blocks)


PAGES = {DOCS / "reference_commands.md": commands_page, DOCS / "reference_python.md": python_page}

if __name__ == "__main__":
    for path, page in PAGES.items():
        path.write_text(page(), encoding="utf-8")
