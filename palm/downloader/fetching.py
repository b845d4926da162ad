"""One file over HTTP: what has arrived stays in `<name>.part`, and the next try continues there."""

from __future__ import annotations

from collections.abc import Iterator
from http.client import HTTPException, HTTPResponse
from pathlib import Path
from typing import NoReturn
from urllib.error import HTTPError, URLError
from urllib.request import Request, urlopen

from tqdm import tqdm

from palm.core.errors import StorageError
from palm.core.version import __version__
from palm.downloader.parts import CHANGED, ELSEWHERE, Part

TIMEOUT = 30.0
"""Seconds without a byte after which a connection counts as broken."""

_BLOCK = 1 << 16


def fetch(url: str, file: Path) -> None:
    """Download a file unless it is there; it appears whole or not at all.

    A connection that breaks off is taken up again for as long as each one brings something.

    Args:
        url: where it is.
        file: where it goes, in a folder that exists.

    Raises:
        StorageError: no connection, it broke off, or what came is not what was expected.
        OSError: the file cannot be written.
    """
    if file.exists():
        return
    part = Part(file)
    before = -1
    while not part.is_complete:
        if part.length <= before:
            raise StorageError(
                f"{url}: the connection broke off after {part.length} of {part.whole.size or 'unknown'} "
                "bytes; run the same again, and it goes on from there"
            )
        before = part.length
        with _opened(url, part) as response:
            part.begin(response)
            progress: tqdm[NoReturn] = tqdm(
                desc=file.name,
                initial=part.length,
                total=part.whole.size,
                unit="B",
                unit_scale=True,
                unit_divisor=1024,
                disable=None,
            )
            with part.path.open("ab") as out, progress:
                for block in _blocks(response, part):
                    out.write(block)
                    progress.update(len(block))
    part.finish()


def _opened(url: str, part: Part) -> HTTPResponse:
    headers = {"User-Agent": f"palm/{__version__}", **part.range_headers()}
    try:
        response: HTTPResponse = urlopen(Request(url, headers=headers), timeout=TIMEOUT)
        return response
    except HTTPError as error:
        error.close()
        if error.code == 404:
            raise StorageError(f"{url}: the server has no such file; {ELSEWHERE[3:]}") from None
        if error.code == 416:
            part.discard()
            raise StorageError(f"{url}: {CHANGED}") from None
        raise StorageError(
            f"{url}: the server answered {error.code} ({error.reason}); try later, {ELSEWHERE}"
        ) from None
    except (OSError, HTTPException, ValueError) as error:  # ValueError: not a URL at all
        reason = error.reason if isinstance(error, URLError) else error
        raise StorageError(
            f"{url} cannot be reached: {reason}; look after the connection, {ELSEWHERE}"
        ) from None


def _blocks(response: HTTPResponse, part: Part) -> Iterator[bytes]:
    """What arrives until the end, or until the connection breaks."""
    try:
        while block := response.read(_BLOCK):
            yield block
    except (OSError, HTTPException):
        return
    part.has_ended = True
