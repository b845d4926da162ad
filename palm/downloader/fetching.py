"""One file over HTTP: what has arrived stays in `<name>.part`, and the next try continues there."""

from __future__ import annotations

import re
from collections.abc import Iterator
from email.message import Message
from http.client import HTTPException, HTTPResponse
from pathlib import Path
from typing import IO, NoReturn
from urllib.error import HTTPError, URLError
from urllib.request import HTTPRedirectHandler, Request, build_opener

from tqdm import tqdm

from palm.core.errors import StorageError
from palm.core.version import __version__
from palm.downloader.parts import CHANGED, ELSEWHERE, Known, Part

TIMEOUT = 30.0
"""Seconds without a byte after which a connection counts as broken."""

_BLOCK = 1 << 16


class FileMissingError(StorageError):
    """The server has no such file."""


def fetch(url: str, file: Path, known: Known | None = None) -> None:
    """Download a file unless it is there; it appears whole and checked, or not at all.

    A connection that breaks off is taken up again for as long as each one brings something.

    Args:
        url: where it is.
        file: where it goes, in a folder that exists.
        known: its size and checksum; without them, those that the server tells.

    Raises:
        FileMissingError: there is nothing at that URL.
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
        _receive(url, part, known)
    part.finish(url, known)


def _receive(url: str, part: Part, known: Known | None) -> None:
    """Append what one connection brings."""
    redirects = _Redirects()
    with _opened(url, part, redirects) as response:
        part.begin(response, redirects.sha256)
        if known and part.whole.size not in (None, known.size):
            offered = part.whole.size
            part.discard()
            raise StorageError(
                f"{url}: the server offers {offered} bytes, expected {known.size}: it is another file; "
                f"try later, {ELSEWHERE}"
            )
        with part.path.open("ab") as out, _progress(part) as progress:
            for block in _blocks(response, part):
                out.write(block)
                progress.update(len(block))


def _opened(url: str, part: Part, redirects: _Redirects) -> HTTPResponse:
    headers = {"User-Agent": f"palm/{__version__}", **part.range_headers()}
    try:
        response: HTTPResponse = build_opener(redirects).open(Request(url, headers=headers), timeout=TIMEOUT)
        return response
    except HTTPError as error:
        error.close()
        if error.code == 404:
            raise FileMissingError(f"{url}: the server has no such file; {ELSEWHERE[3:]}") from None
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


class _Redirects(HTTPRedirectHandler):
    """Follows redirections; the one to a large file is where Hugging Face tells its SHA-256."""

    sha256: str | None = None

    def redirect_request(
        self, req: Request, fp: IO[bytes], code: int, msg: str, headers: Message, newurl: str
    ) -> Request | None:
        linked = str(headers.get("X-Linked-ETag", "")).strip('"')
        if re.fullmatch("[0-9a-f]{64}", linked):
            self.sha256 = linked
        return super().redirect_request(req, fp, code, msg, headers, newurl)  # type: ignore[arg-type]


def _blocks(response: HTTPResponse, part: Part) -> Iterator[bytes]:
    """What arrives until the end, or until the connection breaks."""
    try:
        while block := response.read(_BLOCK):
            yield block
    except (OSError, HTTPException):
        return
    part.has_ended = True


def _progress(part: Part) -> tqdm[NoReturn]:
    return tqdm(
        total=part.whole.size,
        initial=part.length,
        desc=part.file.name,
        unit="B",
        unit_scale=True,
        unit_divisor=1024,
        disable=None,
    )
