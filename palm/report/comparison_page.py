"""A comparison on one page: verdicts, scores of all variants, differences with their intervals, a picture."""

from __future__ import annotations

import base64
from pathlib import Path
from typing import TYPE_CHECKING

from palm.core.errors import StorageError
from palm.core.files.door import is_plain
from palm.core.files.untrusted import read_object
from palm.core.version import __version__

if TYPE_CHECKING:
    from jinja2 import Environment

COMPARISON = "compare.json"
PICTURE = "compare.png"
COMPARISON_FORMAT = "palm-comparison"


def comparison_page(folder: Path, templates: Environment) -> str:
    """The page's HTML.

    Args:
        folder: of the comparison.
        templates: of the report.

    Raises:
        StorageError: what the folder holds is no comparison of this version.
    """
    found = read_object(folder / COMPARISON)
    if found.get("format") != COMPARISON_FORMAT or found.get("version") != 1:
        raise StorageError(f"{folder / COMPARISON} is no comparison of this palm; make it anew: palm compare")
    picture = folder / PICTURE
    return templates.get_template("comparison.html").render(
        name=folder.resolve().name,
        folder=folder,
        found=found,
        picture=base64.b64encode(picture.read_bytes()).decode() if is_plain(picture) else "",
        version=__version__,
    )
