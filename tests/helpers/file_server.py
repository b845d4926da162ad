"""A real HTTP server on this machine whose faults can be chosen."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from threading import Thread


@dataclass
class FileServer:
    """What it offers and how it misbehaves.

    Args:
        files: path -> content.
        redirects: path -> where to, and further headers of the redirection.
        promised_more: bytes by which Content-Length exceeds the body.
        errors: path -> status to answer with.
        headers: path -> further headers of its answers.
        breaks_of: path -> how many bytes of the body each coming request gets before the connection is cut;
            a request beyond the list gets everything.
        halfway: is called when half of a body has been sent.
    """

    url: str = ""
    files: dict[str, bytes] = field(default_factory=dict)
    redirects: dict[str, tuple[str, dict[str, str]]] = field(default_factory=dict)
    promised_more: int = 0
    errors: dict[str, int] = field(default_factory=dict)
    headers: dict[str, dict[str, str]] = field(default_factory=dict)
    breaks_of: dict[str, list[int]] = field(default_factory=dict)
    halfway: Callable[[], None] = lambda: None
    requests: list[tuple[str, str | None]] = field(default_factory=list)
    """Path and Range header of each request for content so far."""

    heads: list[str] = field(default_factory=list)
    """Path of each request for headers alone."""


@contextmanager
def file_server() -> Iterator[FileServer]:
    offer = FileServer()

    class Handler(_Handler):
        server_offer = offer

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        server.daemon_threads = True
        offer.url = f"http://127.0.0.1:{server.server_port}"
        thread = Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        try:
            yield offer
        finally:
            server.shutdown()
            thread.join()


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    server_offer: FileServer

    def do_GET(self) -> None:
        self.server_offer.requests.append((self.path.partition("?")[0], self.headers["Range"]))
        self._respond()

    def do_HEAD(self) -> None:
        self.server_offer.heads.append(self.path)
        self._respond()

    def _respond(self) -> None:
        offer = self.server_offer
        self.path = self.path.partition("?")[0]
        self.close_connection = True
        if self.path in offer.redirects:
            target, more = offer.redirects[self.path]
            self._answer(302, {"Location": target, "Content-Length": "0", **more})
        elif self.path in offer.errors or self.path not in offer.files:
            self._answer(offer.errors.get(self.path, 404), {"Content-Length": "0"})
        else:
            self._send(offer, offer.files[self.path])

    def _send(self, offer: FileServer, data: bytes) -> None:
        headers = {"ETag": f'"{hashlib.md5(data).hexdigest()}"'}
        start = self._start(headers["ETag"])
        if start >= len(data) > 0:
            self._answer(416, {"Content-Range": f"bytes */{len(data)}", "Content-Length": "0"})
            return
        promised = len(data) + offer.promised_more
        headers["Content-Length"] = str(promised - start)
        if start:
            headers["Content-Range"] = f"bytes {start}-{promised - 1}/{promised}"
        self._answer(206 if start else 200, headers)
        if self.command == "HEAD":
            return
        body = data[start:]
        breaks = offer.breaks_of.get(self.path)
        body = body[: breaks.pop(0)] if breaks else body
        with suppress(ConnectionError):
            self.wfile.write(body[: len(body) // 2])
            offer.halfway()
            self.wfile.write(body[len(body) // 2 :])

    def _start(self, etag: str) -> int:
        wanted = re.fullmatch(r"bytes=(\d+)-", self.headers["Range"] or "")
        return int(wanted[1]) if wanted and self.headers["If-Range"] in (None, etag) else 0

    def _answer(self, status: int, headers: dict[str, str]) -> None:
        self.send_response(status)
        self.send_header("Connection", "close")
        for name, value in {**headers, **self.server_offer.headers.get(self.path, {})}.items():
            self.send_header(name, value)
        self.end_headers()

    def log_message(self, format: str, *args: object) -> None:
        pass
