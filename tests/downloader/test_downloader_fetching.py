"""A download over real HTTP is whole, or an error that the next try continues from."""

from __future__ import annotations

import _thread
import random
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from helpers.file_server import FileServer, file_server
from palm.core.errors import StorageError
from palm.downloader.fetching import fetch

DATA = random.Random(1).randbytes(300_000)


@pytest.fixture
def server(monkeypatch: pytest.MonkeyPatch) -> Iterator[FileServer]:
    monkeypatch.setenv("NO_PROXY", "127.0.0.1")
    with file_server() as server:
        server.files["/m.bin"] = DATA
        yield server


def remains(folder: Path) -> dict[str, int]:
    return {file.name: file.stat().st_size for file in folder.iterdir() if file.suffix != ".json"}


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
    server.breaks = [100_000, 0]
    with pytest.raises(StorageError, match=" 100000 of 300000 bytes"):
        fetch(f"{server.url}/m.bin", tmp_path / "m.bin")
    assert remains(tmp_path) == {"m.bin.part": 100_000}
    fetch(f"{server.url}/m.bin", tmp_path / "m.bin")
    assert server.ranges[-1] == "bytes=100000-"
    assert remains(tmp_path) == {"m.bin": 300_000}


def test_a_server_without_ranges_sends_everything_again(server: FileServer, tmp_path: Path) -> None:
    server.has_ranges, server.breaks = False, [200_000]
    fetch(f"{server.url}/m.bin", tmp_path / "m.bin")
    assert (tmp_path / "m.bin").read_bytes() == DATA


def test_a_server_without_ranges_that_always_breaks_is_given_up(server: FileServer, tmp_path: Path) -> None:
    server.has_ranges, server.breaks = False, [200_000] * 9
    with pytest.raises(StorageError, match="broke off after 200000 of 300000"):
        fetch(f"{server.url}/m.bin", tmp_path / "m.bin")
    assert len(server.requests) == 2


def test_a_file_that_changed_in_between_is_fetched_anew(server: FileServer, tmp_path: Path) -> None:
    server.breaks = [100_000, 0]
    with pytest.raises(StorageError):
        fetch(f"{server.url}/m.bin", tmp_path / "m.bin")
    server.files["/m.bin"] = DATA[::-1]
    fetch(f"{server.url}/m.bin", tmp_path / "m.bin")
    assert (tmp_path / "m.bin").read_bytes() == DATA[::-1]


def test_a_part_whose_notes_are_lost_is_not_trusted(server: FileServer, tmp_path: Path) -> None:
    (tmp_path / "m.bin.part").write_bytes(b"who knows")
    (tmp_path / "m.bin.part.json").write_text("{", encoding="utf-8")
    fetch(f"{server.url}/m.bin", tmp_path / "m.bin")
    assert (tmp_path / "m.bin").read_bytes() == DATA


def test_a_part_that_was_complete_needs_no_request(server: FileServer, tmp_path: Path) -> None:
    server.breaks = [100_000, 0]
    with pytest.raises(StorageError):
        fetch(f"{server.url}/m.bin", tmp_path / "m.bin")
    (tmp_path / "m.bin.part").write_bytes(DATA)
    fetch(f"{server.url}/m.bin", tmp_path / "m.bin")
    assert len(server.requests) == 2
    assert remains(tmp_path) == {"m.bin": 300_000}


def test_a_part_longer_than_the_file_is_dropped(server: FileServer, tmp_path: Path) -> None:
    server.breaks = [100_000, 0]
    with pytest.raises(StorageError):
        fetch(f"{server.url}/m.bin", tmp_path / "m.bin")
    (tmp_path / "m.bin.part").write_bytes(DATA + b"!")
    with pytest.raises(StorageError, match=r"http://.* has changed"):
        fetch(f"{server.url}/m.bin", tmp_path / "m.bin")
    assert remains(tmp_path) == {}


def test_a_promise_of_more_than_comes_is_an_error(server: FileServer, tmp_path: Path) -> None:
    server.promised_more = 5
    with pytest.raises(StorageError, match=r"http://.* has changed"):
        fetch(f"{server.url}/m.bin", tmp_path / "m.bin")
    assert remains(tmp_path) == {}


def test_a_redirected_download_is_resumed_too(server: FileServer, tmp_path: Path) -> None:
    server.redirects["/model"] = ("/m.bin", {})
    server.breaks = [70_000]
    fetch(f"{server.url}/model", tmp_path / "model")
    assert (tmp_path / "model").read_bytes() == DATA
    assert server.requests[-1] == ("/m.bin", "bytes=70000-")


def test_a_file_of_untold_length_ends_with_its_connection(server: FileServer, tmp_path: Path) -> None:
    server.has_lengths = False
    fetch(f"{server.url}/m.bin", tmp_path / "m.bin")
    assert (tmp_path / "m.bin").read_bytes() == DATA


@pytest.mark.parametrize(
    ("status", "message"), [(503, r"answered 503 \(Service Unavailable\); try later"), (404, "no such file")]
)
def test_an_answer_that_is_no_file_is_an_error(
    server: FileServer, tmp_path: Path, status: int, message: str
) -> None:
    server.errors["/m.bin"] = status
    with pytest.raises(StorageError, match=message):
        fetch(f"{server.url}/m.bin", tmp_path / "m.bin")


def test_a_missing_file_is_an_error(server: FileServer, tmp_path: Path) -> None:
    with pytest.raises(StorageError, match=r"nothing\.bin: .*PALM_MIRROR"):
        fetch(f"{server.url}/nothing.bin", tmp_path / "m.bin")


def test_a_server_that_is_not_there_is_an_error(tmp_path: Path) -> None:
    with file_server() as server:
        url = server.url
    with pytest.raises(StorageError, match=r"http.* cannot be reached: .*PALM_MIRROR"):
        fetch(f"{url}/m.bin", tmp_path / "m.bin")


@pytest.mark.parametrize("url", ["http://", "http://[1/m.bin", "http://a b/m.bin"])
def test_an_address_that_is_none_is_an_error(tmp_path: Path, url: str) -> None:
    with pytest.raises(StorageError, match="cannot be reached"):
        fetch(url, tmp_path / "m.bin")


@pytest.mark.usefixtures("interruptible")
def test_after_an_interruption_the_next_try_continues(server: FileServer, tmp_path: Path) -> None:
    part = tmp_path / "m.bin.part"

    def interrupt() -> None:
        while not part.exists() or part.stat().st_size < 65_536:
            time.sleep(0.001)
        _thread.interrupt_main()

    server.halfway = interrupt
    with pytest.raises(KeyboardInterrupt):
        fetch(f"{server.url}/m.bin", tmp_path / "m.bin")
    arrived = part.stat().st_size
    assert arrived >= 65_536
    server.halfway = lambda: None
    fetch(f"{server.url}/m.bin", tmp_path / "m.bin")
    assert server.ranges == [None, f"bytes={arrived}-"]
