"""A comparison on one page: verdicts, scores of all variants, differences with their intervals."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from palm.core.errors import StorageError
from palm.core.files.records import check_unchanged
from palm.core.files.untrusted import read_object, wrap_read_errors
from palm.core.version import __version__

if TYPE_CHECKING:
    from jinja2 import Environment

COMPARISON = "compare.json"
COMPARISON_FORMAT = "palm-comparison"


def comparison_page(folder: Path, templates: Environment) -> str:
    """The page's HTML.

    Args:
        folder: of the comparison.
        templates: of the report.

    Raises:
        StorageError: what the folder holds is no comparison of this version.
    """
    file = folder / COMPARISON
    check_unchanged(file)
    found = read_object(file)
    if found.get("format") != COMPARISON_FORMAT or found.get("version") != 1:
        raise StorageError(f"{file} is no comparison of this palm; make it anew: palm compare")
    with wrap_read_errors(file):
        widest: dict[str, float] = {}
        for answer in found["answers"]:
            ends = (abs(answer["difference"][end]) for end in ("low", "high"))
            widest[answer["unit"]] = max(widest.get(answer["unit"], 0.0), *ends)
        return templates.get_template("comparison.html").render(
            name=folder.resolve().name,
            folder=folder,
            found=found,
            widest=widest,
            version=__version__,
        )
