"""A download over real HTTP is whole, or an error that the next try continues from."""

from __future__ import annotations

import _thread
import random
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace

import huggingface_hub.constants
import huggingface_hub.file_download
import pytest

from helpers.file_server import FileServer, file_server
from palm.core.errors import StorageError
from palm.downloader.fetching import fetch
from palm.downloader.staging import staging

DATA = random.Random(1).randbytes(300_000)


@pytest.fixture
def server(monkeypatch: pytest.MonkeyPatch) -> Iterator[FileServer]:
    monkeypatch.setenv("NO_PROXY", "127.0.0.1")
    monkeypatch.setattr(huggingface_hub.constants, "DOWNLOAD_CHUNK_SIZE", 10_000)
    monkeypatch.setattr(huggingface_hub.file_download, "time", SimpleNamespace(sleep=lambda _: None))
    with file_server() as server:
        server.files["/m.bin"] = DATA
        yield server


def test_a_file_arrives_whole_and_leaves_nothing_else(server: FileServer, tmp_path: Path) -> None:
    fetch(f"{server.url}/m.bin", tmp_path / "m.bin")
    assert (tmp_path / "m.bin").read_bytes() == DATA
    assert [file.name for file in tmp_path.iterdir()] == ["m.bin"]


def test_a_file_that_is_there_is_not_asked_for(server: FileServer, tmp_path: Path) -> None:
    (tmp_path / "m.bin").write_bytes(b"mine")
    fetch(f"{server.url}/m.bin", tmp_path / "m.bin")
    assert server.requests == []


def test_a_broken_connection_is_taken_up_where_it_broke(server: FileServer, tmp_path: Path) -> None:
    server.breaks = [100_000, 50_000]
    fetch(f"{server.url}/m.bin", tmp_path / "m.bin")
    assert (tmp_path / "m.bin").read_bytes() == DATA
    assert server.ranges == [None, "bytes=100000-", "bytes=150000-"]


def test_a_connection_that_brings_nothing_more_is_an_error_and_the_next_try_continues(
    server: FileServer, tmp_path: Path
) -> None:
    server.breaks = [100_000, *[0] * 9]
    with pytest.raises(StorageError) as caught:
        fetch(f"{server.url}/m.bin", tmp_path / "m.bin")
    assert f"{server.url}/m.bin" in str(caught.value)
    assert "PALM_MIRROR" in str(caught.value)
    assert [file.stat().st_size for file in tmp_path.iterdir()] == [100_000]
    server.breaks = []
    fetch(f"{server.url}/m.bin", tmp_path / "m.bin")
    assert server.ranges[-1] == "bytes=100000-"
    assert (tmp_path / "m.bin").read_bytes() == DATA
    assert [file.name for file in tmp_path.iterdir()] == ["m.bin"]


def test_a_server_without_ranges_sends_everything_again(server: FileServer, tmp_path: Path) -> None:
    server.has_ranges, server.breaks = False, [200_000]
    fetch(f"{server.url}/m.bin", tmp_path / "m.bin")
    assert (tmp_path / "m.bin").read_bytes() == DATA


def test_a_file_that_changed_in_between_is_fetched_again(server: FileServer, tmp_path: Path) -> None:
    server.breaks = [100_000, *[0] * 9]
    with pytest.raises(StorageError):
        fetch(f"{server.url}/m.bin", tmp_path / "m.bin")
    server.breaks = []
    server.files["/m.bin"] = DATA[::-1]
    fetch(f"{server.url}/m.bin", tmp_path / "m.bin")
    assert (tmp_path / "m.bin").read_bytes() == DATA[::-1]
    assert [file.name for file in tmp_path.iterdir()] == ["m.bin"]


def test_a_server_without_etags_sends_everything_again(server: FileServer, tmp_path: Path) -> None:
    (tmp_path / "m.bin..part").write_bytes(b"who knows")
    server.has_etags = False
    fetch(f"{server.url}/m.bin", tmp_path / "m.bin")
    assert (tmp_path / "m.bin").read_bytes() == DATA


def test_a_redirected_download_arrives(server: FileServer, tmp_path: Path) -> None:
    server.redirects["/model"] = ("/m.bin", {})
    fetch(f"{server.url}/model", tmp_path / "model")
    assert (tmp_path / "model").read_bytes() == DATA


def test_a_file_of_unknown_length_ends_with_its_connection(server: FileServer, tmp_path: Path) -> None:
    server.has_lengths = False
    fetch(f"{server.url}/m.bin", tmp_path / "m.bin")
    assert (tmp_path / "m.bin").read_bytes() == DATA


@pytest.mark.parametrize("status", [503, 404])
def test_an_answer_that_is_not_a_file_is_an_error(server: FileServer, tmp_path: Path, status: int) -> None:
    server.errors["/m.bin"] = status
    with pytest.raises(StorageError, match=rf"m\.bin.*{status}.*PALM_MIRROR"):
        fetch(f"{server.url}/m.bin", tmp_path / "m.bin")


@pytest.mark.usefixtures("server")
@pytest.mark.parametrize(
    "url", ["http://127.0.0.1:1/m.bin", "http://", "http://[1/m.bin", "http://a b/m.bin"]
)
def test_an_address_where_nothing_is_is_an_error(tmp_path: Path, url: str) -> None:
    with pytest.raises(StorageError, match="PALM_MIRROR"):
        fetch(url, tmp_path / "m.bin")


@pytest.mark.usefixtures("interruptible")
def test_after_an_interruption_the_next_try_continues(server: FileServer, tmp_path: Path) -> None:
    server.halfway = lambda: _thread.interrupt_main() if server.requests else None
    with pytest.raises(KeyboardInterrupt):
        fetch(f"{server.url}/m.bin", tmp_path / "m.bin")
    (part,) = tmp_path.iterdir()
    arrived = part.stat().st_size
    server.halfway = lambda: None
    fetch(f"{server.url}/m.bin", tmp_path / "m.bin")
    assert server.ranges == [None, f"bytes={arrived}-" if arrived else None]
    assert (tmp_path / "m.bin").read_bytes() == DATA


def test_a_file_that_somebody_put_beside_a_download_stays(tmp_path: Path) -> None:
    with staging(tmp_path / "model") as work:
        (work / "notes.txt").write_text("mine", encoding="utf-8")
    assert [path.name for path in work.iterdir()] == ["notes.txt"]
