"""Tables at addresses: copied once, never in part, from stores on this machine with the real protocols."""

from __future__ import annotations

import base64
import hashlib
import json
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest

import palm
from helpers import hub, tiny
from helpers.file_server import FileServer, file_server
from helpers.messages import raises
from palm.core.errors import DataError
from palm.reader.tables import files
from palm.reader.tables.columns import Columns
from palm.reader.tables.files import copies_of
from palm.reader.tables.reading import read_table, usable

fsspec = pytest.importorskip("fsspec")
TABLE = b"label,text_a\n" + b"1,the boat\n" * 5000
LIBRARIES = {"http": "aiohttp", "s3": "s3fs", "gs": "gcsfs", "gs-parts": "gcsfs", "hf": "huggingface_hub"}
KINDS = pytest.mark.parametrize("store", LIBRARIES, indirect=True)


def md5(content: bytes) -> bytes:
    return hashlib.md5(content).digest()


class Store:
    """A store with one table.

    Args:
        kind: of the store.
        server: answers as it would.
        cache: of the library `huggingface_hub`.
    """

    def __init__(self, kind: str, server: FileServer, cache: Path, patch: pytest.MonkeyPatch) -> None:
        self.kind = kind
        self.server = server
        self.versions = 0
        if kind == "s3":
            patch.setenv("AWS_ENDPOINT_URL", server.url)
            for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_DEFAULT_REGION"):
                patch.setenv(name, "us-east-1")
        elif kind.startswith("gs"):
            patch.setenv("STORAGE_EMULATOR_HOST", server.url)
            patch.setenv("GCSFS_EXPERIMENTAL_ZB_HNS_SUPPORT", "false")
        elif kind.startswith("hf"):
            hub.ask(server, cache, patch)
        places = {
            "s3": "/bucket/",
            "gs": "/download/storage/v1/b/bucket/o/",
            "hf": "/datasets/o/n/resolve/main/",
        }
        self.content_at = places.get(kind[:2], "/data/") + "a.csv"
        self.offer(TABLE)

    def address(self, name: str = "a.csv") -> Path:
        starts = {"s3": "s3://bucket", "gs": "gs://bucket", "hf": "hf://datasets/o/n"}
        return Path(f"{starts.get(self.kind[:2], f'{self.server.url}/data')}/{name}")

    def offer(self, content: bytes, stated: bytes | None = None) -> None:
        """Have this content, with the size and the checksum of another."""
        self.versions += 1
        files = self.server.files
        files[self.content_at] = content
        stated = content if stated is None else stated
        about: dict[str, object] = {"name": "a.csv", "bucket": "bucket", "generation": str(self.versions)}
        about |= {"path": "a.csv", "type": "file", "size": len(stated)}
        if self.kind == "s3":
            self.server.headers[self.content_at] = {"ETag": f'"{md5(stated).hex()}"'}
        elif self.kind == "gs":
            about["md5Hash"] = base64.b64encode(md5(stated)).decode()
        elif self.kind == "gs-parts":
            crc32c = pytest.importorskip("google_crc32c").value(stated)
            about["crc32c"] = base64.b64encode(crc32c.to_bytes(4, "big")).decode()
        elif self.kind.startswith("hf"):
            about["oid"] = hashlib.sha1(b"blob %d\0" % len(stated) + stated).hexdigest()
        if self.kind == "hf-large":
            about["lfs"] = {
                "oid": hashlib.sha256(stated).hexdigest(),
                "size": len(stated),
                "pointerSize": 134,
            }
        files["/storage/v1/b/bucket/o/a.csv"] = json.dumps(about).encode()
        files["/api/datasets/o/n"] = json.dumps({"id": "o/n", "sha": hub.COMMIT}).encode()
        files["/api/datasets/o/n/tree/main"] = json.dumps([about]).encode()

    @property
    def sent(self) -> int:
        return sum(path == self.content_at for path, _ in self.server.requests)

    def count(self, name: str = "a.csv") -> int:
        copies_of.cache_clear()  # as another process would
        return sum(1 for _ in map(usable, read_table(self.address(name), Columns(["label", "text_a"]))))


@pytest.fixture
def store(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Store]:
    kind = request.param
    pytest.importorskip(LIBRARIES.get(kind, "huggingface_hub"))
    monkeypatch.setenv("PALM_DATA_CACHE", str(tmp_path / "cache"))
    fsspec.get_filesystem_class(kind.split("-")[0]).clear_instance_cache()
    with file_server() as server:
        yield Store(kind, server, tmp_path / "hub", monkeypatch)
    copies_of.cache_clear()


@KINDS
def test_a_file_is_copied_once_and_again_when_it_has_changed(store: Store) -> None:
    assert store.count() == 5000
    sent = store.sent
    assert store.count() == 5000
    assert store.sent == sent
    store.offer(TABLE + b"1,more\n")
    assert store.count() == 5001


@KINDS
@pytest.mark.parametrize("length", [0, 20, len(TABLE) - 1])
def test_a_connection_that_breaks_off_is_an_error_or_ends_in_all_rows(store: Store, length: int) -> None:
    store.server.breaks_of[store.content_at] = [length]
    with suppress(DataError):
        assert store.count() == 5000  # of a library that asks again
    assert store.count() == 5000


@KINDS
@pytest.mark.parametrize("difference", [-9, 9])
def test_another_length_than_the_store_states_is_an_error(store: Store, difference: int) -> None:
    if store.kind == "http":
        store.server.promised_more = abs(difference)
    else:
        store.offer(TABLE, TABLE[:difference] if difference < 0 else TABLE + bytes(difference))
    with pytest.raises(DataError, match=r"a\.csv"):
        store.count()
    store.server.promised_more = 0
    store.offer(TABLE)
    assert store.count() == 5000


@KINDS
def test_a_file_that_changes_while_it_is_copied_is_an_error(store: Store) -> None:
    def change() -> None:
        if store.server.requests and store.server.requests[-1][0] == store.content_at and store.versions == 1:
            store.offer(TABLE + b"0,late\n")

    store.server.halfway = change
    with pytest.raises(DataError, match=r"a\.csv"):
        store.count()
    assert store.count() == 5001


@KINDS
def test_a_missing_file_is_reported_with_its_address(store: Store) -> None:
    with raises(DataError, str(store.address("missing.csv")).split(":/")[1].strip("/")):
        store.count("missing.csv")


def test_a_pattern_of_a_store_is_read_in_order(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PALM_DATA_CACHE", str(tmp_path / "cache"))
    memory = fsspec.filesystem("memory")
    for number in (2, 0, 1):
        memory.pipe(f"/tables/part-{number}.jsonl", b'{"label": %d, "text_a": "a"}' % number)
    rows = map(usable, read_table(Path("memory://tables/part-*.jsonl"), Columns(["label", "text_a"])))
    assert [row.cells["label"] for row in rows] == [0, 1, 2]
    memory.rm("/tables", recursive=True)


@pytest.mark.parametrize("status", [401, 404, 500])
def test_a_refused_download_tells_the_status_and_no_secret(
    status: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("aiohttp")
    monkeypatch.setenv("PALM_DATA_CACHE", str(tmp_path / "cache"))
    with file_server() as server:
        server.files["/data/a.csv"] = TABLE
        server.errors["/data/a.csv"] = status
        address = server.url.replace("://", "://anna:secret@") + "/data/a.csv?token=abcdef"
        with pytest.raises(DataError) as caught:
            copies_of(Path(address))
    told = str(caught.value)
    assert str(status) in told
    assert f"{server.url}/data/a.csv" in told
    assert not [word for word in ("anna", "secret", "abcdef") if word in told]


def test_a_download_waits_for_silence_and_not_for_its_length() -> None:
    aiohttp = pytest.importorskip("aiohttp")
    timeout = files._patience("https://host.org/a.csv")["client_kwargs"]["timeout"]
    assert isinstance(timeout, aiohttp.ClientTimeout)
    assert timeout.total is None
    assert timeout.sock_read == files.SILENCE


def test_a_run_on_an_address_stores_and_logs_no_secret(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    pytest.importorskip("aiohttp")
    caplog.set_level("DEBUG", "palm")
    monkeypatch.setenv("PALM_DATA_CACHE", str(tmp_path / "cache"))
    tiny.write_files(tmp_path)
    config = tiny.config(tmp_path, "cls")
    config.pop("data_cache", None)
    with file_server() as server:
        server.files["/cls.tsv"] = (tmp_path / "cls.tsv").read_bytes()
        address = server.url.replace("://", "://quentin:hunter2@") + "/cls.tsv?token=abcdef"
        config["tasks"]["cls"] |= {"train_file": address, "dev_file": address}
        palm.Controller(config, argv=[]).train()
        (tmp_path / "config.yaml").write_text(json.dumps(config), encoding="utf-8")
        controller = palm.Controller(tmp_path / "config.yaml", for_train=False, argv=[])
        assert "accuracy" in controller.evaluate("cls")
    found = [caplog.text.encode(), *(p.read_bytes() for p in (tmp_path / "out").rglob("*") if p.is_file())]
    found += [p.read_bytes() for p in (tmp_path / "cache").rglob("*") if p.is_file()]
    assert [word for word in (b"quentin", b"hunter2", b"abcdef") for text in found if word in text] == []
    assert any(b"/cls.tsv?" in text for text in found)
