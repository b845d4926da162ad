"""Resumable download of one file over HTTP, with huggingface_hub."""

from __future__ import annotations

import re
from pathlib import Path
from urllib.request import Request, urlopen

from huggingface_hub.file_download import http_get

from palm.core.errors import StorageError
from palm.core.files.door import open_to_append, remove, rename

TIMEOUT = 30.0
"""Seconds to wait for a response from the server."""


def fetch(url: str, file: Path) -> None:
    """Download a file atomically, unless it exists.

    Partial downloads are kept in `<name>.<ETag>.part` and resumed; the ETag prevents a mix of two versions.

    Raises:
        StorageError: if the connection fails or breaks, or the response is not as expected.
        OSError: if the file cannot be written.
    """
    if file.exists():
        return
    try:
        rename(_download_part(url, file), file)
    except Exception as error:  # includes errors of the HTTP library, which depends on the version
        if isinstance(error, OSError) and error.errno is not None:  # the disk
            raise
        cause = " ".join(str(error).split())
        remedy = "run the command again to resume the download, or set PALM_MIRROR to another server"
        raise StorageError(f"{url}: {type(error).__name__}: {cause}; {remedy}") from error
    for old in file.parent.glob(f"{file.name}.*.part"):
        remove(old)


def _download_part(url: str, file: Path) -> Path:
    with urlopen(Request(url, method="HEAD"), timeout=TIMEOUT) as response:
        # Without a length from the server, the file ends with the connection.
        size = int(response.headers["Content-Length"] or 0) or None
        version = re.sub(r"\W", "", response.headers["ETag"] or "")
    part = file.with_name(f"{file.name}.{version}.part")
    is_too_long = size is not None and part.is_file() and part.stat().st_size > size
    if is_too_long or not version:
        remove(part)
    with open_to_append(part) as out:
        http_get(url, out, resume_size=out.tell(), expected_size=size, displayed_filename=file.name)
    return part
