"""A name becomes a folder that palm reads, from PaddlePALM's archives and Hugging Face's repositories."""

from __future__ import annotations

import io
import json
import logging
import os
import runpy
import struct
import subprocess
import sys
import tarfile
import time
from _thread import interrupt_main
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from threading import Thread
from types import SimpleNamespace

import huggingface_hub.constants
import huggingface_hub.file_download
import numpy as np
import pytest
import torch
from safetensors.torch import load, save
from torch import Tensor

from helpers import hub
from helpers.file_server import FileServer, file_server
from helpers.shared import RECORDED_0, needs_shared
from helpers.subword_files import write_byte_level
from palm.backbone import BERT, ERNIE, Backbone, RoBERTa
from palm.cli import main as command
from palm.core.errors import PalmError, StorageError
from palm.downloader import MODELS, download, items, ls
from palm.downloader.staging import staging
from palm.pretrained import from_ours, load_backbone, read_directory, read_weights, to_ours
from palm.pretrained.families import config_of

NAMES_OF_2_0 = [
    "RoBERTa-zh-base",
    "RoBERTa-zh-large",
    "ERNIE-v2-en-base",
    "ERNIE-v2-en-large",
    "XLNet-cased-base",
    "XLNet-cased-large",
    "ERNIE-v1-zh-base",
    "ERNIE-v1-zh-base-max-len-512",
    "BERT-en-uncased-large-whole-word-masking",
    "BERT-en-cased-large-whole-word-masking",
    "BERT-en-uncased-base",
    "BERT-en-uncased-large",
    "BERT-en-cased-base",
    "BERT-en-cased-large",
    "BERT-multilingual-uncased-base",
    "BERT-multilingual-cased-base",
    "BERT-zh-base",
]

SIZES = {
    "hidden_size": 8,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "vocab_size": 20,
    "max_position_embeddings": 10,
}
VOCABULARY = "\n".join(["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *"abcdefghijklmno"]).encode()


@pytest.fixture
def server(monkeypatch: pytest.MonkeyPatch, tmp_path_factory: pytest.TempPathFactory) -> Iterator[FileServer]:
    monkeypatch.setattr(huggingface_hub.constants, "DOWNLOAD_CHUNK_SIZE", 500)
    monkeypatch.setattr(
        huggingface_hub.file_download, "time", SimpleNamespace(sleep=lambda _: None, time=time.time)
    )
    with file_server() as server:
        monkeypatch.setenv("PALM_MIRROR", f"{server.url}/palm/")
        hub.ask(server, tmp_path_factory.mktemp("cache"), monkeypatch)
        yield server


def tiny(kind: type[BERT] | type[ERNIE] = BERT) -> Backbone:
    torch.manual_seed(3)
    return kind.from_config(SIZES)


def variable(value: Tensor) -> bytes:
    """A float32 tensor as Fluid's file."""
    description = b"\x08\x05" + b"".join(bytes([0x10, size]) for size in value.shape)
    return (
        struct.pack("<IQIi", 0, 0, 0, len(description)) + description + value.contiguous().numpy().tobytes()
    )


def palm_files(backbone: Backbone) -> dict[str, bytes]:
    """The files of one of PaddlePALM's archives."""
    config = "ernie_config.json" if isinstance(backbone, ERNIE) else "bert_config.json"
    weights = from_ours(backbone.state_dict(), "paddlepalm")
    return {
        "vocab.txt": VOCABULARY,
        config: json.dumps(SIZES).encode(),
        **{f"params/{name}": variable(value) for name, value in weights.items()},
    }


def packed(files: dict[str, bytes], top: str = "uncased/") -> bytes:
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w:gz") as tar:
        for name, content in files.items():
            member = tarfile.TarInfo(top + name)
            member.size = len(content)
            tar.addfile(member, io.BytesIO(content))
    return buffer.getvalue()


def offer_archive(server: FileServer, name: str, archive: bytes) -> str:
    path = "/palm/" + MODELS[name].url.rpartition("/")[2]
    server.files[path] = archive
    return path


def tree(folder: Path) -> list[str]:
    return sorted(path.relative_to(folder).as_posix() for path in folder.rglob("*"))


def equal(one: Backbone, other: Backbone) -> bool:
    ours, theirs = one.state_dict(), other.state_dict()
    return ours.keys() == theirs.keys() and all(torch.equal(ours[name], theirs[name]) for name in ours)


# The list


def test_the_list_begins_with_the_names_of_2_0_as_paddlepalm_prints_them(
    caplog: pytest.LogCaptureFixture,
) -> None:
    with caplog.at_level(logging.INFO, "palm"):
        ls("pretrain")
    first, *lines = caplog.messages
    assert first == "Available pretrain items:"
    assert [line.removeprefix("  => ").split(" (")[0] for line in lines] == list(MODELS)
    assert list(MODELS)[:17] == NAMES_OF_2_0
    assert list(MODELS)[17:19] == ["bert-en-uncased-large", "ernie-en-uncased-large"]


def test_the_list_says_that_there_is_no_xlnet_and_where_a_repository_is(
    caplog: pytest.LogCaptureFixture,
) -> None:
    with caplog.at_level(logging.INFO, "palm"):
        ls("pretrain", "XLNet-cased-base")
        ls(scope="bert-base-chinese")
    assert caplog.messages[1].split()[:2] == ["=>", "XLNet-cased-base"]
    assert caplog.messages[3].split()[1::3] == ["bert-base-chinese", "google-bert/bert-base-chinese)"]


def test_the_names_of_0_2_1_are_the_archives_of_2_0() -> None:
    assert MODELS["bert-en-uncased-large"].url == MODELS["BERT-en-uncased-large"].url
    assert MODELS["ernie-en-uncased-large"].url == MODELS["ERNIE-v2-en-large"].url


@pytest.mark.parametrize("call", [ls, download])
def test_an_unknown_name_is_an_error_with_the_list(call: object) -> None:
    assert callable(call)
    with pytest.raises(PalmError, match=r"'BERT-zh-bas'.*RoBERTa.*'BERT-zh-base'\?"):
        call("pretrain", "BERT-zh-bas")
    with pytest.raises(PalmError, match=r"'vocab'.*pretrain"):
        call("vocab")


# PaddlePALM's archives


@pytest.mark.parametrize(("name", "kind"), [("bert-en-uncased-large", BERT), ("ERNIE-v2-en-base", ERNIE)])
def test_an_archive_becomes_a_folder_as_the_demos_expect_it(
    server: FileServer, tmp_path: Path, name: str, kind: type[BERT] | type[ERNIE]
) -> None:
    path = offer_archive(server, name, packed(palm_files(tiny(kind))))
    folder = download("pretrain", name, tmp_path)
    assert folder == tmp_path / "pretrain" / name
    assert server.requests == [(path, None)]
    assert tree(tmp_path / "pretrain")[0] == name
    assert not (tmp_path / "pretrain" / f"{name}.part").exists()
    assert {"params", "vocab.txt", f"{kind.__name__.lower()}_config.json"} < set(tree(folder))
    assert equal(load_backbone(folder), tiny(kind))


@pytest.mark.parametrize("kind", [BERT, ERNIE])
def test_converted_weights_are_what_paddlepalm_has_and_transformers_reads_them(
    server: FileServer, tmp_path: Path, kind: type[BERT] | type[ERNIE]
) -> None:
    transformers = pytest.importorskip("transformers")
    offer_archive(server, "BERT-zh-base", packed(palm_files(tiny(kind))))
    folder = download("pretrain", "BERT-zh-base", tmp_path)
    original = to_ours(read_weights(folder / "params")).weights
    converted = to_ours(read_weights(folder)).weights
    assert original.keys() == converted.keys()
    assert all(torch.equal(original[name], converted[name]) for name in original)
    theirs = transformers.AutoModel.from_pretrained(folder)
    assert theirs.config.model_type == kind.__name__.lower()
    assert torch.equal(theirs.pooler.dense.weight, original["pooler.weight"])


@needs_shared
@pytest.mark.parametrize("kind", ["bert", "ernie"])
def test_paddlepalms_own_packed_parameters_arrive_with_their_values(
    server: FileServer, tmp_path: Path, kind: str
) -> None:
    original = RECORDED_0 / "formats" / f"pretrain_{kind}"
    files = {"vocab.txt": VOCABULARY}
    for name in (f"{kind}_config.json", "params/__palmmodel__", "params/__palminfo__"):
        files[name] = (original / name).read_bytes()
    offer_archive(server, "BERT-zh-base", packed(files, top="model/"))
    backbone = load_backbone(download("pretrain", "BERT-zh-base", tmp_path))
    with np.load(original / "values.npz") as values:
        word, query = values["word_embedding"], values["encoder_layer_1_multi_head_att_query_fc.w_0"]
    weights = backbone.state_dict()
    assert np.array_equal(weights["embeddings.word.weight"].numpy(), word)
    assert np.array_equal(weights["layers.1.attention.query.weight"].numpy(), query.T)


def test_a_pooler_that_the_archive_lacks_is_not_made_up(server: FileServer, tmp_path: Path) -> None:
    files = {name: content for name, content in palm_files(tiny()).items() if "pooled_fc" not in name}
    offer_archive(server, "BERT-zh-base", packed(files))
    weights = read_weights(download("pretrain", "BERT-zh-base", tmp_path))
    assert "embeddings.word_embeddings.weight" in weights
    assert "pooler.dense.weight" not in weights


def test_a_folder_that_is_there_is_not_touched(server: FileServer, tmp_path: Path) -> None:
    mine = tmp_path / "pretrain" / "BERT-zh-base" / "mine.txt"
    mine.parent.mkdir(parents=True)
    mine.write_text("mine", encoding="utf-8")
    download("pretrain", "BERT-zh-base", tmp_path)
    assert server.requests == []
    assert tree(tmp_path / "pretrain") == ["BERT-zh-base", "BERT-zh-base/mine.txt"]


def test_an_empty_folder_is_filled(server: FileServer, tmp_path: Path) -> None:
    (tmp_path / "pretrain" / "BERT-zh-base").mkdir(parents=True)
    offer_archive(server, "BERT-zh-base", packed(palm_files(tiny())))
    assert equal(load_backbone(download("pretrain", "BERT-zh-base", tmp_path)), tiny())


@pytest.mark.parametrize("is_too_long", [False, True])
def test_an_interrupted_archive_is_continued(server: FileServer, tmp_path: Path, is_too_long: bool) -> None:
    archive = packed(palm_files(tiny()))
    path = offer_archive(server, "BERT-zh-base", archive)
    server.breaks = [1000, *[0] * 9]
    with pytest.raises(StorageError, match=path):
        download("pretrain", "BERT-zh-base", tmp_path)
    (part,) = [
        tmp_path / "pretrain" / name for name in tree(tmp_path / "pretrain") if name.endswith(".part")
    ][1:]
    assert (part.parent.parent.name, part.stat().st_size) == ("BERT-zh-base.part", 1000)
    server.breaks = []
    if is_too_long:
        with part.open("ab") as file:
            file.truncate(len(archive) + 1)
    download("pretrain", "BERT-zh-base", tmp_path)
    assert server.ranges[-1] == (None if is_too_long else "bytes=1000-")
    assert [path for path in tree(tmp_path / "pretrain") if "/" not in path] == ["BERT-zh-base"]


BAD = {
    "a name that climbs": (packed({"../../x": b"x"}), r"tar\.gz .*'uncased/\.\./\.\./x'"),
    "a page": (b"<html>Log in</html>", r"chinese\S*\.tar\.gz is damaged"),
    "cut short": (packed(palm_files(tiny()))[:2000], r"chinese\S*\.tar\.gz is damaged"),
    "no vocabulary": (
        packed({name: content for name, content in palm_files(tiny()).items() if name != "vocab.txt"}),
        r"no vocab\.txt",
    ),
    "no weights": (packed({"vocab.txt": VOCABULARY, "bert_config.json": b"{}"}), "no weights at"),
    "sizes that do not fit": (
        packed({**palm_files(tiny()), "bert_config.json": json.dumps({**SIZES, "vocab_size": 21}).encode()}),
        r"embeddings\.word\.weight: \[20, 8\].* \[21, 8\]",
    ),
}


@pytest.mark.parametrize(("archive", "message"), BAD.values(), ids=BAD)
def test_an_archive_that_is_damaged_leaves_nothing_behind(
    server: FileServer, tmp_path: Path, archive: bytes, message: str
) -> None:
    offer_archive(server, "BERT-zh-base", archive)
    with pytest.raises(StorageError, match=message):
        download("pretrain", "BERT-zh-base", tmp_path / "here")
    assert tree(tmp_path) == ["here", "here/pretrain"]
    offer_archive(server, "BERT-zh-base", packed(palm_files(tiny())))
    assert equal(load_backbone(download("pretrain", "BERT-zh-base", tmp_path / "here")), tiny())


def test_xlnet_comes_as_it_is_with_a_warning(
    server: FileServer, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    offer_archive(server, "XLNet-cased-base", packed({"spiece.model": b"x", "xlnet_config.json": b"{}"}))
    folder = download("pretrain", "XLNet-cased-base", tmp_path)
    (warning,) = [record.getMessage() for record in caplog.records if record.levelname == "WARNING"]
    assert "XLNet-cased-base" in warning
    assert tree(folder) == ["spiece.model", "xlnet_config.json"]


def test_all_is_every_model_with_a_backbone(
    server: FileServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    names = ["BERT-zh-base", "XLNet-cased-base", "ERNIE-v2-en-base"]
    monkeypatch.setitem(items.ITEMS, "pretrain", {name: MODELS[name] for name in names})
    offer_archive(server, "BERT-zh-base", packed(palm_files(tiny())))
    offer_archive(server, "ERNIE-v2-en-base", packed(palm_files(tiny(ERNIE))))
    assert download("pretrain", "all", tmp_path) == tmp_path / "pretrain"
    assert sorted(path.name for path in (tmp_path / "pretrain").iterdir()) == [
        "BERT-zh-base",
        "ERNIE-v2-en-base",
    ]


# Hugging Face's repositories


def test_a_repository_becomes_a_folder(server: FileServer, tmp_path: Path) -> None:
    settings = {"tokenizer_config.json": b'{"do_lower_case": true}'}
    others = {
        "README.md": b"read",
        "modeling_bert.py": b"run",
        "pytorch_model.bin": b"?",
        "tokenizer.json": b"{}",
    }
    hub.offer_model(server, "google-bert/bert-base-cased", {**hub.files_of(tiny()), **settings, **others})
    folder = download("pretrain", "bert-base-cased", tmp_path)
    assert folder == tmp_path / "pretrain" / "bert-base-cased"
    assert tree(tmp_path / "pretrain")[:2] == ["bert-base-cased", "bert-base-cased/config.json"]
    assert tree(folder) == ["config.json", "model.safetensors", "tokenizer_config.json", "vocab.txt"]
    assert equal(load_backbone(folder), tiny())


@pytest.mark.parametrize("name", ["someone/tiny-bert", "someone/tiny-bert@v1.0"])
def test_any_repository_can_be_named(server: FileServer, tmp_path: Path, name: str) -> None:
    hub.offer_model(server, "someone/tiny-bert", hub.files_of(tiny()), revisions=("main", "v1.0"))
    assert download("pretrain", name, tmp_path) == tmp_path / "pretrain" / name
    assert equal(load_backbone(tmp_path / "pretrain" / name), tiny())
    before = len(server.requests)
    download("pretrain", name, tmp_path)
    assert len(server.requests) == before


def test_the_vocabulary_of_roberta_comes_with_its_merges(server: FileServer, tmp_path: Path) -> None:
    encoder = RoBERTa.from_config({**SIZES, "vocab_size": 400})
    files = {**hub.files_of(encoder), "config.json": json.dumps(config_of(encoder)).encode()}
    del files["vocab.txt"]
    vocabulary = write_byte_level(tmp_path / "vocabulary")
    files |= {name: vocabulary.with_name(name).read_bytes() for name in ("vocab.json", "merges.txt")}
    hub.offer_model(server, "FacebookAI/roberta-base", files)
    folder = download("pretrain", "roberta-base", tmp_path)
    assert tree(folder) == ["config.json", "merges.txt", "model.safetensors", "vocab.json"]
    directory = read_directory(folder)
    assert (directory.backbone, directory.vocab_path) == ("roberta", folder / "vocab.json")


def test_a_repository_with_only_a_torch_file_will_do(server: FileServer, tmp_path: Path) -> None:
    files = hub.files_of(tiny())
    del files["model.safetensors"]
    buffer = io.BytesIO()
    torch.save(from_ours(tiny().state_dict(), "huggingface"), buffer)
    hub.offer_model(server, "hfl/chinese-macbert-base", {**files, "pytorch_model.bin": buffer.getvalue()})
    folder = download("pretrain", "chinese-macbert-base", tmp_path)
    assert tree(folder) == ["config.json", "pytorch_model.bin", "vocab.txt"]
    assert equal(load_backbone(folder), tiny())


def test_weights_in_shards_come_whole(server: FileServer, tmp_path: Path) -> None:
    files = hub.files_of(tiny())
    weights = load(files.pop("model.safetensors"))
    first, second = "model-00001-of-00002.safetensors", "model-00002-of-00002.safetensors"
    shards: dict[str, dict[str, Tensor]] = {first: {}, second: {}}
    places = {name: (first, second)[number % 2] for number, name in enumerate(weights)}
    for name, shard in places.items():
        shards[shard][name] = weights[name]
    index = {"model.safetensors.index.json": json.dumps({"weight_map": places}).encode()}
    parts = {name: save(tensors) for name, tensors in shards.items()}
    hub.offer_model(server, "someone/large-bert", {**files, **index, **parts})
    folder = download("pretrain", "someone/large-bert", tmp_path)
    assert tree(folder) == ["config.json", first, second, "model.safetensors.index.json", "vocab.txt"]
    assert equal(load_backbone(folder), tiny())


def test_a_repository_without_a_vocabulary_is_an_error_and_leaves_no_folder(
    server: FileServer, tmp_path: Path
) -> None:
    files = hub.files_of(tiny())
    del files["vocab.txt"]
    hub.offer_model(server, "google-bert/bert-base-cased", files)
    with pytest.raises(StorageError, match=r"vocab\.txt or vocab\.json"):
        download("pretrain", "bert-base-cased", tmp_path)
    assert tree(tmp_path) == ["pretrain"]


# The place and the surroundings


def test_a_mirror_that_is_not_an_address_is_an_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PALM_MIRROR", "mirror.example")
    with pytest.raises(PalmError, match=r"PALM_MIRROR .*'mirror\.example'"):
        download("pretrain", "BERT-zh-base", tmp_path)
    assert tree(tmp_path / "pretrain") == []


def test_a_model_that_another_process_is_downloading_is_waited_for(
    server: FileServer, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    offer_archive(server, "BERT-zh-base", packed(palm_files(tiny())))
    folder = tmp_path / "pretrain" / "BERT-zh-base"
    other = Thread(target=download, args=("pretrain", "BERT-zh-base", tmp_path))
    with caplog.at_level(logging.INFO, "palm"), staging(folder):
        other.start()
        waiting = f"waiting for another process that is downloading {folder}"
        while waiting not in caplog.messages and other.is_alive():
            time.sleep(0.001)
        folder.mkdir()
        (folder / "vocab.txt").write_bytes(VOCABULARY)
    other.join()
    assert caplog.messages == [waiting]
    assert server.requests == []
    assert tree(tmp_path / "pretrain") == ["BERT-zh-base", "BERT-zh-base/vocab.txt"]


def test_a_place_that_cannot_be_written_is_an_error(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("", encoding="utf-8")
    with pytest.raises(StorageError) as caught:
        download("pretrain", "BERT-zh-base", tmp_path / "file")
    assert str(tmp_path / "file" / "pretrain") in str(caught.value)


@contextmanager
def files_of_at_most(size: int) -> Iterator[None]:
    """A disk that is full, as far as this process can tell."""
    resource = pytest.importorskip("resource", reason="Windows cannot limit the size of a process's files")
    unlimited = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, unlimited[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, unlimited)


def test_a_full_disk_is_an_error_and_the_next_try_continues(server: FileServer, tmp_path: Path) -> None:
    path = offer_archive(server, "BERT-zh-base", packed(palm_files(tiny())))
    with (
        files_of_at_most(1500),
        pytest.raises(StorageError, match=r"cannot write .*: File too large"),
    ):
        download("pretrain", "BERT-zh-base", tmp_path)
    download("pretrain", "BERT-zh-base", tmp_path)
    assert server.requests == [(path, None), (path, "bytes=1500-")]


def test_a_disk_that_fills_up_after_the_download_costs_no_second_one(
    server: FileServer, tmp_path: Path
) -> None:
    archive = packed(palm_files(tiny()))
    offer_archive(server, "BERT-zh-base", archive)
    with files_of_at_most(len(archive)), pytest.raises(StorageError, match=r"cannot write .*part: "):
        download("pretrain", "BERT-zh-base", tmp_path)
    folder = download("pretrain", "BERT-zh-base", tmp_path)
    assert (folder / "model.safetensors").stat().st_size > len(archive)
    assert len(server.requests) == 1


# download_models.py


SCRIPT = Path(__file__).resolve().parents[2] / "download_models.py"


def test_the_script_makes_the_folder_pretrain_where_it_is_called(server: FileServer, tmp_path: Path) -> None:
    path = offer_archive(server, "bert-en-uncased-large", packed(palm_files(tiny())))
    run = subprocess.run(
        [sys.executable, str(SCRIPT), "-d", "bert-en-uncased-large"],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": str(SCRIPT.parent), "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert (run.returncode, run.stdout) == (0, "")
    url = f"{server.url}{path}"
    assert run.stderr.startswith(f"Downloading pretrain: bert-en-uncased-large from {url}...\nExtracting ")
    assert run.stderr.endswith("done!\n")
    assert (tmp_path / "pretrain" / "bert-en-uncased-large" / "params").is_dir()


def test_the_script_lists_the_models(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys, "argv", ["download_models.py", "-l"])
    assert runpy.run_path(str(SCRIPT))["main"]() == 0
    assert capsys.readouterr().out.splitlines()[:2] == ["Available pretrain items:", "  => RoBERTa-zh-base"]


def test_the_script_explains_an_error_in_one_line(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys, "argv", ["download_models.py", "-d", "bert-en-uncased-larg"])
    assert runpy.run_path(str(SCRIPT))["main"]() == 2
    error = capsys.readouterr().err
    assert "'bert-en-uncased-larg'" in error
    assert error.endswith("'bert-en-uncased-large'?\n")


# palm download


def test_the_command_downloads_by_name_to_a_path(
    server: FileServer, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    offer_archive(server, "BERT-en-uncased-base", packed(palm_files(tiny())))
    words = ["download", "BERT-en-uncased-base", "--output", str(tmp_path)]
    assert command(words) == 0
    folder = tmp_path / "pretrain" / "BERT-en-uncased-base"
    assert [path.name for path in sorted(folder.iterdir())] == [
        "bert_config.json",
        "config.json",
        "model.safetensors",
        "params",
        "vocab.txt",
    ]
    assert capsys.readouterr().err == ""


@pytest.mark.usefixtures("interruptible")
def test_an_interrupted_command_says_how_to_resume(
    server: FileServer, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    offer_archive(server, "BERT-en-uncased-base", packed(palm_files(tiny())))

    server.halfway = interrupt_main
    assert command(["download", "BERT-en-uncased-base", "--output", str(tmp_path)]) == 130
    assert capsys.readouterr().err.startswith("interrupted; ")


def test_the_command_lists_and_knows_its_words(capsys: pytest.CaptureFixture[str]) -> None:
    assert command(["download", "--list"]) == 0
    assert "  => XLNet-cased-base " in capsys.readouterr().out
    with pytest.raises(SystemExit) as ended:
        command(["download", "BERT-en-uncased-base", "--batch_size", "8"])
    assert ended.value.code == 2
    assert "--batch_size=8" in capsys.readouterr().err
