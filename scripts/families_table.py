"""Write the tables of supported model families to docs/encoders.md: `python scripts/families_table.py`."""

from __future__ import annotations

from pathlib import Path

from palm.backbone.transformers import FAMILIES

PAGE = Path(__file__).resolve().parents[1] / "docs" / "encoders.md"
BEGIN = "<!-- families, written by scripts/families_table.py -->\n"
END = "<!-- end of families -->\n"


def table() -> str:
    """Return the supported families, then the refused ones with the reasons."""
    rows = [
        f"| {title} | {', '.join(f'`{kind}`' for kind in kinds.split())} |"
        for title, kinds in FAMILIES.items()
    ]
    others = "of the library's models for masked words; any other family is refused by its name, too"
    parts = [
        "| | `model_type` |\n|---|---|",
        *rows[:2],
        f"\nRefused, because … ({others}):\n\n| why | `model_type` |\n|---|---|",
        *rows[2:],
    ]
    return "\n".join(parts)


def page() -> str:
    """Return the page with up-to-date tables."""
    before, rest = PAGE.read_text(encoding="utf-8").split(BEGIN)
    return f"{before}{BEGIN}\n{table()}\n\n{END}{rest.split(END)[1]}"


if __name__ == "__main__":
    PAGE.write_text(page(), encoding="utf-8")
