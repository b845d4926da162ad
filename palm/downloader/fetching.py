"""One file over HTTP, by the means of huggingface_hub; what has arrived stays, and the next try continues."""

from __future__ import annotations

import re
from pathlib import Path
from urllib.request import Request, urlopen

from huggingface_hub.file_download import http_get

from palm.core.errors import StorageError
from palm.core.files.door import open_to_append, remove, rename

TIMEOUT = 30.0
"""Seconds without an answer after which a server counts as out of reach."""


def fetch(url: str, file: Path) -> None:
    """Download a file unless it is there; it appears whole or not at all.

    What arrives lies in `<name>.<ETag>.part`, so the rest of a changed file is never put behind it.

    Raises:
        StorageError: no connection, it broke off, or what came is not what was expected.
        OSError: the file cannot be written.
    """
    if file.exists():
        return
    try:
        rename(_arrived(url, file), file)
    except Exception as error:  # errors of its HTTP library too, which is another one in other versions
        if isinstance(error, OSError) and error.errno is not None:  # the disk
            raise
        cause = " ".join(str(error).split())
        remedy = "run the same again, and it continues from there, or set PALM_MIRROR to another server"
        raise StorageError(f"{url}: {type(error).__name__}: {cause}; {remedy}") from error
    for old in file.parent.glob(f"{file.name}.*.part"):
        remove(old)


def _arrived(url: str, file: Path) -> Path:
    with urlopen(Request(url, method="HEAD"), timeout=TIMEOUT) as response:
        # A server may tell no length; then the file ends with the connection.
        size = int(response.headers["Content-Length"] or 0) or None
        version = re.sub(r"\W", "", response.headers["ETag"] or "")
    part = file.with_name(f"{file.name}.{version}.part")
    if not version:
        remove(part)
    with open_to_append(part) as out:
        http_get(url, out, resume_size=out.tell(), expected_size=size, displayed_filename=file.name)
    return part
