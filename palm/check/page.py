"""A check as one HTML file, without network access and scripts."""

from __future__ import annotations

from pathlib import Path

from palm.check.result import Check
from palm.check.text import sections, verdict
from palm.core.io import write_text
from palm.report.page import environment


def write_page(check: Check, file: Path) -> None:
    """Write a check as an HTML page.

    Raises:
        PalmError: jinja2 is missing.
        StorageError: the file cannot be written.
    """
    write_text(file, page(check))


def page(check: Check) -> str:
    """Return the page's HTML, with what `text_of_check` shows; all text from the data is escaped."""
    template = environment("palm.check").get_template("check.html")
    return template.render(check=check, verdict=verdict(check), sections=list(sections(check)))
