"""A check as one HTML file, in the style of the report, without network access and scripts."""

from __future__ import annotations

from pathlib import Path

from palm.check.result import Check
from palm.check.text import labels_of, size, verdict
from palm.core.durations import duration
from palm.core.files.fs import write_json, write_text
from palm.report.charts import Chart, Line
from palm.report.curves import Curve
from palm.report.page import environment


def write_findings(check: Check, file: Path) -> None:
    """Write a check as JSON, or as a page if the file has the suffix `.html`.

    Raises:
        PalmError: jinja2 is missing.
        StorageError: the file cannot be written.
    """
    if file.suffix == ".html":
        write_text(file, page(check), kind="check.html")
    else:
        write_json(file, check.as_json(), kind="check.json")


def page(check: Check) -> str:
    """Return the page's HTML; all text from the data is escaped."""
    templates = environment("palm.check")
    templates.filters |= {"size": size, "took": duration, "labels": labels_of}
    curve = check.plan and Curve("learning rate", check.plan.rates)
    return templates.get_template("check.html").render(
        check=check,
        verdict=verdict(check),
        rate=curve and Chart("Learning rate", "rate", [Line(curve, 7)]),
    )
