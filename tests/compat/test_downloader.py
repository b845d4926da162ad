"""PaddlePALM's names become folders that its scripts and palm read, from a local stand-in of the Hub."""

from __future__ import annotations

import json
import logging
import runpy
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

import palm.compat as palm
from helpers import hub
from helpers.equal import differing
from helpers.file_server import FileServer, file_server
from palm import compat
from palm.backbone import BERT, ERNIE, Backbone
from palm.compat.downloader import MODELS, download, ls
from palm.core.errors import PalmError

NAMES_OF_2_0 = [
    *("RoBERTa-zh-base", "RoBERTa-zh-large", "ERNIE-v2-en-base", "ERNIE-v2-en-large", "XLNet-cased-base"),
    *("XLNet-cased-large", "ERNIE-v1-zh-base", "ERNIE-v1-zh-base-max-len-512"),
    *("BERT-en-uncased-large-whole-word-masking", "BERT-en-cased-large-whole-word-masking"),
    *("BERT-en-uncased-base", "BERT-en-uncased-large", "BERT-en-cased-base", "BERT-en-cased-large"),
    *("BERT-multilingual-uncased-base", "BERT-multilingual-cased-base", "BERT-zh-base"),
]
NAMES_OF_0_2_1 = ["bert-en-uncased-large", "ernie-en-uncased-large"]

SIZES = {"hidden_size": 8, "num_hidden_layers": 2, "num_attention_heads": 2, "vocab_size": 20}
SIZES |= {"max_position_embeddings": 10}
SCRIPT = Path(__file__).resolve().parents[2] / "download_models.py"


@pytest.fixture
def server(monkeypatch: pytest.MonkeyPatch, tmp_path_factory: pytest.TempPathFactory) -> Iterator[FileServer]:
    with file_server() as server:
        hub.ask(server, tmp_path_factory.mktemp("cache"), monkeypatch)
        for name, kind in (("BERT-zh-base", BERT), ("ERNIE-v1-zh-base", ERNIE)):
            files = hub.files_of(tiny(kind))
            told = {"model_type": kind.__name__.lower(), **json.loads(files["config.json"])}
            hub.offer_model(server, str(MODELS[name]), {**files, "config.json": json.dumps(told).encode()})
        yield server


def tiny(kind: type[BERT] | type[ERNIE] = BERT) -> Backbone:
    torch.manual_seed(3)
    return kind.from_config(SIZES)


def visible(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir() if not path.name.startswith("."))


def test_the_list_has_the_published_names(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.INFO, "palm"):
        palm.downloader.ls("pretrain")
        palm.downloader.ls(scope="BERT-zh-base")
    assert [line.split()[1] for line in caplog.messages[1:20]] == NAMES_OF_2_0 + NAMES_OF_0_2_1
    assert caplog.messages[21].split()[1:] == ["BERT-zh-base", "(google-bert/bert-base-chinese)"]


@pytest.mark.parametrize("call", [ls, download])
def test_an_unknown_name_is_an_error_with_the_list(call: object) -> None:
    assert callable(call)
    with pytest.raises(PalmError, match=r"'BERT-zh-bas'.*RoBERTa.*'BERT-zh-base'\?"):
        call("pretrain", "BERT-zh-bas")
    with pytest.raises(PalmError, match=r"'vocab'.*pretrain"):
        call("vocab")


@pytest.mark.parametrize("name", ["XLNet-cased-base", "ERNIE-v1-zh-base-max-len-512"])
def test_a_model_that_the_hub_or_palm_lacks_is_an_error(tmp_path: Path, name: str) -> None:
    with pytest.raises(PalmError, match=f"^{name} "):
        download("pretrain", name, tmp_path)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.usefixtures("server")
def test_a_name_becomes_a_folder_as_the_scripts_of_2_x_expect_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    folder = compat.downloader.download("pretrain", "ERNIE-v1-zh-base")
    assert folder == Path("pretrain/ERNIE-v1-zh-base")
    assert visible(folder) == ["config.json", "ernie_config.json", "model.safetensors", "vocab.txt"]
    config = json.loads((folder / "ernie_config.json").read_text(encoding="utf-8"))
    backbone = compat.backbone.ERNIE.from_config(config)
    head = compat.head.Classify(4, 8)
    trainer = compat.Trainer("cls")
    compat.reader.ClassifyReader(str(folder / "vocab.txt"), 8).register_with(backbone)
    trainer.build_forward(backbone, head)
    trainer.load_pretrain("pretrain/ERNIE-v1-zh-base/params")
    assert differing(backbone, tiny(ERNIE)) == []


def test_complete_files_are_not_downloaded_again(server: FileServer, tmp_path: Path) -> None:
    folder = download("pretrain", "BERT-zh-base", tmp_path)
    (folder / "mine.txt").write_text("mine", encoding="utf-8")
    download("pretrain", "BERT-zh-base", tmp_path)
    assert len([path for path, _ in server.requests if path.startswith("/cdn/")]) == 1
    assert differing(palm.load_backbone(folder), tiny()) == []
    assert "mine.txt" in visible(folder)


@pytest.mark.parametrize("name", ["someone/tiny-bert", "someone/tiny-bert@v1.0"])
def test_any_model_of_the_hub_can_be_named(server: FileServer, tmp_path: Path, name: str) -> None:
    hub.offer_model(server, "someone/tiny-bert", hub.files_of(tiny()), revisions=("main", "v1.0"))
    assert download("pretrain", name, tmp_path) == tmp_path / "pretrain" / name
    assert differing(palm.load_backbone(tmp_path / "pretrain" / name), tiny()) == []


# download_models.py and palm download


def test_the_script_lists_the_models_and_explains_an_error(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys, "argv", ["download_models.py", "-l"])
    assert runpy.run_path(str(SCRIPT))["main"]() == 0
    assert capsys.readouterr().out.splitlines()[1].split()[:2] == ["=>", "RoBERTa-zh-base"]
    monkeypatch.setattr(sys, "argv", ["download_models.py", "-d", "bert-en-uncased-larg"])
    assert runpy.run_path(str(SCRIPT))["main"]() == 2
    assert "'bert-en-uncased-larg'" in capsys.readouterr().err
