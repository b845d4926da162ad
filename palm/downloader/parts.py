"""The beginning of a file that is being downloaded, and what is known of the whole."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from http.client import HTTPResponse
from pathlib import Path

from palm.core.errors import StorageError
from palm.core.storage import read_json, write_json

CHANGED = "the file has changed since its download began; run the same again, and it starts anew"
ELSEWHERE = "or name a mirror in the environment variable PALM_MIRROR"


@dataclass(frozen=True)
class Whole:
    """What a server says of a whole file: its size, and how to know it again."""

    size: int | None = None
    validator: str | None = None


class Part:
    """The beginning of a file in `<name>.part`, and in `<name>.part.json` what its server said.

    Args:
        file: where the whole is to be.
    """

    def __init__(self, file: Path) -> None:
        self.file = file
        self.path = file.with_name(f"{file.name}.part")
        self.notes = file.with_name(f"{file.name}.part.json")
        self.has_ended = False
        try:
            self.whole = Whole(**read_json(self.notes))
        except (StorageError, TypeError):  # there are none, or they are damaged
            self.whole = Whole()

    @property
    def length(self) -> int:
        return self.path.stat().st_size if self.path.exists() else 0

    @property
    def is_complete(self) -> bool:
        return self.has_ended if self.whole.size is None else self.length == self.whole.size

    def range_headers(self) -> dict[str, str]:
        """What asks for the rest, provided that the file is still the same; otherwise for all of it."""
        if not self.length or not self.whole.size or not self.whole.validator:
            return {}
        return {"Range": f"bytes={self.length}-", "If-Range": self.whole.validator}

    def begin(self, response: HTTPResponse) -> None:
        """Take a response: the rest, as asked for, or the whole, which replaces what is there."""
        if response.status != 206:
            # A weak ETag says only that the content means the same; the rest of it may not fit what is there.
            etag = response.headers.get("ETag")
            is_weak = etag is None or etag.startswith("W/")
            self.whole = Whole(response.length, response.headers.get("Last-Modified") if is_weak else etag)
            self.path.write_bytes(b"")
            write_json(self.notes, asdict(self.whole))
            return
        size = self.whole.size or 0
        if response.headers["Content-Range"] != f"bytes {self.length}-{size - 1}/{size}":
            self.discard()
            raise StorageError(f"{response.url}: {CHANGED}")

    def finish(self) -> None:
        """Make it the file."""
        self.path.replace(self.file)
        self.notes.unlink(missing_ok=True)

    def discard(self) -> None:
        self.path.unlink(missing_ok=True)
        self.notes.unlink(missing_ok=True)
