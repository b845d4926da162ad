"""One file over HTTP: what has arrived stays in `<name>.part`, and the next try continues there."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from http.client import HTTPException, HTTPResponse
from pathlib import Path
from typing import NoReturn
from urllib.error import HTTPError, URLError
from urllib.request import Request, urlopen

from tqdm import tqdm

from palm.core.errors import StorageError
from palm.core.files.door import new_file, open_to_append, remove, rename
from palm.core.files.untrusted import read_json
from palm.core.version import __version__

TIMEOUT = 30.0
"""Seconds without a byte after which a connection counts as broken."""

_BLOCK = 1 << 16
_CHANGED = "the file has changed since its download began; run the same again to start from the beginning"
_ELSEWHERE = "or name a mirror in the environment variable PALM_MIRROR"


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
    part = _Part(file)
    before = -1
    while not part.is_complete:
        if part.length <= before:
            raise StorageError(
                f"{url}: the connection broke off after {part.length} of {part.whole.size or 'unknown'} "
                "bytes; run the same again, and it continues from there"
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
            with open_to_append(part.path) as out, progress:
                for block in part.blocks(response):
                    out.write(block)
                    progress.update(len(block))
    part.finish()


def _opened(url: str, part: _Part) -> HTTPResponse:
    headers = {"User-Agent": f"palm/{__version__}", **part.range_headers()}
    try:
        response: HTTPResponse = urlopen(Request(url, headers=headers), timeout=TIMEOUT)
        return response
    except HTTPError as error:
        error.close()
        if error.code == 404:
            raise StorageError(f"{url}: the server has no such file; {_ELSEWHERE[3:]}") from None
        if error.code == 416:
            part.discard()
            raise StorageError(f"{url}: {_CHANGED}") from None
        raise StorageError(
            f"{url}: the server answered {error.code} ({error.reason}); try later, {_ELSEWHERE}"
        ) from None
    except (OSError, HTTPException, ValueError) as error:  # ValueError: not a URL at all
        reason = error.reason if isinstance(error, URLError) else error
        raise StorageError(
            f"{url} cannot be reached: {reason}; look after the connection, {_ELSEWHERE}"
        ) from None


@dataclass(frozen=True)
class _Whole:
    """A server's description of a whole file: its size, and a validator that changes with it."""

    size: int | None = None
    validator: str | None = None


class _Part:
    """The beginning of a file in `<name>.part`, with its server's description in `<name>.part.json`.

    Args:
        file: where the whole is to be.
    """

    def __init__(self, file: Path) -> None:
        self.file = file
        self.path = file.with_name(f"{file.name}.part")
        self.notes = file.with_name(f"{file.name}.part.json")
        self.has_ended = False
        try:
            self.whole = _Whole(**read_json(self.notes))
        except (StorageError, TypeError):  # there are none, or they are damaged
            self.whole = _Whole()

    @property
    def length(self) -> int:
        return self.path.stat().st_size if self.path.exists() else 0

    @property
    def is_complete(self) -> bool:
        return self.has_ended if self.whole.size is None else self.length == self.whole.size

    def range_headers(self) -> dict[str, str]:
        """Return headers that ask for the rest if the file is still the same, and otherwise for all of it."""
        if not self.length or not self.whole.size or not self.whole.validator:
            return {}
        return {"Range": f"bytes={self.length}-", "If-Range": self.whole.validator}

    def blocks(self, response: HTTPResponse) -> Iterator[bytes]:
        """Yield what arrives until the end, or until the connection breaks."""
        try:
            while block := response.read(_BLOCK):
                yield block
        except (OSError, HTTPException):
            return
        self.has_ended = True

    def begin(self, response: HTTPResponse) -> None:
        """Take a response: the rest, as asked for, or the whole, which replaces what is there."""
        if response.status != 206:
            # A weak ETag says only that the content means the same; the rest of it may not fit what is there.
            etag = response.headers.get("ETag")
            is_weak = etag is None or etag.startswith("W/")
            self.whole = _Whole(response.length, response.headers.get("Last-Modified") if is_weak else etag)
            self.discard()
            # Notes that a kill damages are not trusted, so they need no atomic file and its record.
            with new_file(self.notes) as notes:
                notes.write(json.dumps(asdict(self.whole)).encode())
            return
        size = self.whole.size or 0
        if response.headers["Content-Range"] != f"bytes {self.length}-{size - 1}/{size}":
            self.discard()
            raise StorageError(f"{response.url}: {_CHANGED}")

    def finish(self) -> None:
        """Make it the file."""
        rename(self.path, self.file)
        remove(self.notes)

    def discard(self) -> None:
        remove(self.path)
        remove(self.notes)
