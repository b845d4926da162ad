"""Write the table of all settings to docs/configuration.md: `python scripts/settings_table.py`."""

from __future__ import annotations

from pathlib import Path

from palm.config.conversion import Parameter, type_name
from palm.config.run import default_text, listed
from palm.controller.resolve import HELP, NO_SETTINGS

PAGE = Path(__file__).resolve().parents[1] / "docs" / "configuration.md"
MARK = "<!-- settings table, written by scripts/settings_table.py -->\n"


def table() -> str:
    """Return the settings of every heading as Markdown tables."""
    parts = []
    for heading, consumers in HELP.items():
        rows = [_row(setting) for setting in listed(consumers, NO_SETTINGS)]
        parts.append(
            f"### {heading.capitalize()}\n\n| setting | type | default | meaning |\n|---|---|---|---|\n"
        )
        parts[-1] += "".join(rows)
    return "\n".join(parts)


def _row(setting: Parameter) -> str:
    default = default_text(setting).removeprefix("default ")
    meaning = setting.doc.replace("|", "/")
    return f"| `{setting.name}` | {type_name(setting.annotation)} | {default} | {meaning} |\n"


def page() -> str:
    """Return the page with an up-to-date table."""
    before = PAGE.read_text(encoding="utf-8").split("<!-- settings table", 1)[0]
    return f"{before}{MARK}\n{table()}"


if __name__ == "__main__":
    PAGE.write_text(page(), encoding="utf-8")
