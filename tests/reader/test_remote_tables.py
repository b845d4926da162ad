"""Tables at addresses: copied once, and never read in part."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from palm.core.errors import DataError
from palm.reader.tables.columns import Columns
from palm.reader.tables.reading import read_table
from palm.reader.tables.remote import copies_of

pytest.importorskip("fsspec")
TABLE = b"label,text_a\n" + b"1,the boat\n" * 5000


class Store(ThreadingHTTPServer):
    """An HTTP server of one file, which cuts or changes it when told to."""

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), Handler)
        self.content = TABLE
        self.cut_after: int | None = None
        self.changes = False
        self.sent = 0


class Handler(BaseHTTPRequestHandler):
    server: Store

    def log_message(self, *_: object) -> None:
        pass

    def answer(self) -> bytes:
        content = self.server.content
        self.send_response(200 if "missing" not in self.path else 404)
        self.send_header("Content-Length", str(len(content)))
        self.send_header("ETag", f'"{hash(content)}"')
        self.end_headers()
        return content

    def do_HEAD(self) -> None:
        self.answer()

    def do_GET(self) -> None:
        content = self.answer()
        self.server.sent += 1
        self.wfile.write(content[: self.server.cut_after])
        if self.server.changes:
            self.server.content = content + b"0,late\n"


@pytest.fixture
def store(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Store]:
    pytest.importorskip("aiohttp")
    monkeypatch.setenv("PALM_DATA_CACHE", str(tmp_path / "cache"))
    copies_of.cache_clear()
    with Store() as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield server
        server.shutdown()
    copies_of.cache_clear()


def count(store: Store, name: str = "a.csv?version=1") -> int:
    copies_of.cache_clear()  # as another process would
    path = Path(f"http://127.0.0.1:{store.server_port}/{name}")
    return sum(1 for _ in read_table(path, Columns(["label", "text_a"])))


def test_a_file_is_copied_once_and_again_when_it_has_changed(store: Store) -> None:
    assert count(store) == 5000
    sent = store.sent
    assert count(store) == 5000
    assert store.sent == sent
    store.content = TABLE + b"1,more\n"
    assert count(store) == 5001


@pytest.mark.parametrize("length", [0, 20, len(TABLE) - 1])
def test_a_connection_that_breaks_off_is_an_error_and_then_forgotten(store: Store, length: int) -> None:
    store.cut_after = length
    with pytest.raises(DataError, match=r"a\.csv"):
        count(store)
    store.cut_after = None
    assert count(store) == 5000


def test_a_file_that_changes_while_it_is_copied_is_an_error(store: Store) -> None:
    store.changes = True
    with pytest.raises(DataError, match=r"a\.csv"):
        count(store)
    store.changes = False
    assert count(store) > 5000


def test_a_missing_file_is_told_with_its_address(store: Store) -> None:
    with pytest.raises(DataError, match=r"http://127.*missing\.csv"):
        count(store, "missing.csv")


def test_a_pattern_of_a_store_is_read_in_order(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PALM_DATA_CACHE", str(tmp_path / "cache"))
    memory = pytest.importorskip("fsspec").filesystem("memory")
    for number in (2, 0, 1):
        memory.pipe(f"/tables/part-{number}.jsonl", b'{"label": %d, "text_a": "a"}' % number)
    rows = read_table(Path("memory://tables/part-*.jsonl"), Columns(["label", "text_a"]))
    assert [row.cells["label"] for row in rows] == [0, 1, 2]
    memory.rm("/tables", recursive=True)
