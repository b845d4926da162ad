"""An archive unpacks to plain files inside its folder, or to nothing and an error."""

from __future__ import annotations

import gzip
import io
import random
import tarfile
from collections.abc import Callable
from pathlib import Path

import pytest

from palm.core.errors import StorageError
from palm.downloader import archives
from palm.downloader.archives import unpack
from palm.pretrained.formats import zips


def packed(path: Path, *members: tuple[tarfile.TarInfo, bytes]) -> Path:
    with tarfile.open(path, "w:gz", format=tarfile.PAX_FORMAT) as tar:
        for member, content in members:
            member.size = len(content)
            tar.addfile(member, io.BytesIO(content))
    return path


def file(name: str, content: bytes = b"x") -> tuple[tarfile.TarInfo, bytes]:
    return tarfile.TarInfo(name), content


def special(name: str, kind: bytes, target: str = "") -> tuple[tarfile.TarInfo, bytes]:
    member = tarfile.TarInfo(name)
    member.type, member.linkname = kind, target
    return member, b""


def names(folder: Path) -> list[str]:
    return sorted(path.relative_to(folder).as_posix() for path in folder.rglob("*"))


def test_a_single_top_directory_is_opened(tmp_path: Path) -> None:
    archive = packed(tmp_path / "a.tgz", file("m/vocab.txt"), file("m/params/w", b"1"))
    found = unpack(archive, tmp_path / "out")
    assert names(found) == ["params", "params/w", "vocab.txt"]
    assert (found / "params" / "w").read_bytes() == b"1"


def test_several_entries_at_the_top_stay_there(tmp_path: Path) -> None:
    archive = packed(tmp_path / "a.tgz", special("./", tarfile.DIRTYPE), file("./v"), file("./params/w"))
    assert names(unpack(archive, tmp_path / "out")) == ["params", "params/w", "v"]


def test_hidden_files_are_passed_over(tmp_path: Path) -> None:
    archive = packed(tmp_path / "a.tgz", file("._m"), file("m/.DS_Store"), file("m/v"))
    assert names(unpack(archive, tmp_path / "out")) == ["v"]


@pytest.mark.parametrize("name", ["../x", "m/../../x"])
def test_a_name_that_leads_out_is_refused(tmp_path: Path, name: str) -> None:
    archive = packed(tmp_path / "a.tgz", file(name))
    with pytest.raises(StorageError) as caught:
        unpack(archive, tmp_path / "out")
    assert "a.tgz" in str(caught.value)
    assert repr(name) in str(caught.value)


@pytest.mark.parametrize("name", ["/etc/x", "//etc/x"])
def test_an_absolute_name_counts_from_the_folder(tmp_path: Path, name: str) -> None:
    archive = packed(tmp_path / "a.tgz", file(name), file("v"))
    assert names(unpack(archive, tmp_path / "out")) == ["etc", "etc/x", "v"]


def test_nothing_is_written_outside_by_a_name_that_climbs(tmp_path: Path) -> None:
    (tmp_path / "here").mkdir()
    archive = packed(tmp_path / "here" / "a.tgz", file("../../x"))
    with pytest.raises(StorageError):
        unpack(archive, tmp_path / "here" / "out")
    assert names(tmp_path) == ["here", "here/a.tgz", "here/out"]


@pytest.mark.parametrize(
    "kind", [tarfile.SYMTYPE, tarfile.LNKTYPE, tarfile.CHRTYPE, tarfile.BLKTYPE, tarfile.FIFOTYPE]
)
def test_links_and_devices_are_refused(tmp_path: Path, kind: bytes) -> None:
    archive = packed(tmp_path / "a.tgz", file("m/v"), special("m/x", kind, "v"))
    with pytest.raises(StorageError, match=r"a\.tgz: .*'m/x'"):
        unpack(archive, tmp_path / "out")


def test_a_sparse_file_is_refused_because_its_holes_cost_nothing_in_the_archive(tmp_path: Path) -> None:
    member = tarfile.TarInfo("m/x")
    member.pax_headers = {
        "GNU.sparse.major": "0",
        "GNU.sparse.minor": "1",
        "GNU.sparse.size": "1000000000000",
        "GNU.sparse.map": "0,1",
    }
    archive = packed(tmp_path / "a.tgz", (member, b"x"))
    with pytest.raises(StorageError, match=r"a\.tgz: .*'m/x'"):
        unpack(archive, tmp_path / "out")


@pytest.mark.parametrize("name", ["m/zeros", "n" * 150], ids=["in a file", "behind a long name"])
def test_a_bomb_is_stopped_at_the_limit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    monkeypatch.setattr(zips, "MIN_LIMIT", 1_000_000)
    archive = packed(tmp_path / "a.tgz", file(name, bytes(3_000_000)))
    assert archive.stat().st_size < 10_000
    with pytest.raises(StorageError, match=r"a\.tgz: .* 1\d{6} bytes"):
        unpack(archive, tmp_path / "out")


def test_a_bomb_in_a_header_is_stopped_too(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(zips, "MIN_LIMIT", 1_000_000)
    member = tarfile.TarInfo("m/x")
    member.pax_headers = {"comment": "x" * 3_000_000}
    archive = packed(tmp_path / "a.tgz", (member, b""))
    with pytest.raises(StorageError, match=r"a\.tgz: .* 1\d{6} bytes"):
        unpack(archive, tmp_path / "out")


def test_what_grows_little_may_be_large(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(zips, "MIN_LIMIT", 1000)
    archive = packed(tmp_path / "a.tgz", file("m/w", random.Random(0).randbytes(100_000)))
    assert (unpack(archive, tmp_path / "out") / "w").stat().st_size == 100_000


def test_too_many_files_are_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(archives, "MAX_MEMBERS", 5)
    archive = packed(tmp_path / "a.tgz", *(file(f"m/{number}") for number in range(6)))
    with pytest.raises(StorageError, match=r"a\.tgz: .* 5 files"):
        unpack(archive, tmp_path / "out")


def test_a_file_below_a_file_is_damage(tmp_path: Path) -> None:
    archive = packed(tmp_path / "a.tgz", file("m/v"), file("m/v/w"))
    with pytest.raises(StorageError, match=r"a\.tgz .*m/v"):
        unpack(archive, tmp_path / "out")


@pytest.fixture
def good(tmp_path: Path) -> bytes:
    return packed(tmp_path / "a.tgz", file("m/w", random.Random(0).randbytes(100_000))).read_bytes()


DAMAGES: dict[str, Callable[[bytes], bytes]] = {
    "cut short": lambda good: good[: len(good) // 2],
    "cut short inside": lambda good: gzip.compress(gzip.decompress(good)[:50_000]),
    "one bit of the checksum": lambda good: good[:-8] + bytes([good[-8] ^ 1]) + good[-7:],
    "one bit of the content": lambda good: good[:900] + bytes([good[900] ^ 1]) + good[901:],
    "nothing at all": lambda good: good[:0],
    "a web page": lambda good: b"<!DOCTYPE html>" + good[:0],
}


@pytest.mark.parametrize("damage", DAMAGES.values(), ids=DAMAGES)
def test_a_damaged_archive_is_an_error(tmp_path: Path, good: bytes, damage: Callable[[bytes], bytes]) -> None:
    (tmp_path / "a.tgz").write_bytes(damage(good))
    with pytest.raises(StorageError, match=r"a\.tgz is damaged"):
        unpack(tmp_path / "a.tgz", tmp_path / "out")
