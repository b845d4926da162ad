"""`owner/name` stands for a model at Hugging Face wherever a directory of pretrained weights can be named."""

from __future__ import annotations

import io
import json
import re
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
import yaml
from huggingface_hub import constants
from safetensors.torch import load, save
from torch import Tensor

import palm.compat as palm
from helpers import hub, tiny
from helpers.equal import differing
from helpers.file_server import FileServer, file_server
from palm import Controller
from palm.backbone import BERT
from palm.core.errors import ConfigError, StorageError
from palm.pretrained.loading import pretrained_directory
from palm.pretrained.names import from_ours

MODEL = "someone/tiny-bert"
EXACT = f"{MODEL}@{hub.COMMIT}"
SIZES = tiny.sizes(8, 2, 2, intermediate_size=16, vocab_size=40, max_position_embeddings=64)


def encoder(seed: int = 3) -> BERT:
    torch.manual_seed(seed)
    return BERT(**SIZES)


@pytest.fixture
def server(monkeypatch: pytest.MonkeyPatch, tmp_path_factory: pytest.TempPathFactory) -> Iterator[FileServer]:
    """A server that has one model, and this process asking it, in a folder of its own."""
    monkeypatch.chdir(tmp_path_factory.mktemp("here"))
    with file_server() as server:
        hub.ask(server, tmp_path_factory.mktemp("cache"), monkeypatch)
        hub.offer_model(server, MODEL, hub.files_of(encoder()))
        yield server


def auto(folder: Path, **settings: object) -> dict[str, object]:
    """A run's configuration that says nothing of its backbone but its name."""
    config = tiny.config(
        tiny.write_files(folder), "cls", backbone="auto", pretrain_path=MODEL, num_epochs=0.5
    )
    del config["backbone_config_path"], config["vocab_path"]
    return {**config, "use_gpu": False, **settings}


# The cache


def test_only_files_that_palm_reads_are_fetched(server: FileServer) -> None:
    others = {
        "README.md": b"read",
        "modeling_bert.py": b"run",
        "pytorch_model.bin": b"?",
        "tf_model.h5": b"?",
    }
    hub.offer_model(server, MODEL, {**hub.files_of(encoder()), **others})
    folder = pretrained_directory(MODEL)
    assert folder.name == hub.COMMIT
    assert sorted(file.name for file in folder.iterdir()) == ["config.json", "model.safetensors", "vocab.txt"]


def test_offline_the_cache_is_enough_and_nobody_is_asked(
    server: FileServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = pretrained_directory(MODEL)
    before = len(server.requests), len(server.heads)
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
    assert pretrained_directory(MODEL) == pretrained_directory(EXACT) == folder
    assert (len(server.requests), len(server.heads)) == before


def test_a_revision_is_fetched_and_a_commit_stays_what_it_was(server: FileServer) -> None:
    newer = "89abcdef0123456789abcdef0123456789abcdef"
    hub.offer_model(server, MODEL, hub.files_of(encoder(4)), newer, ("next",))
    assert differing(palm.load_backbone(f"{MODEL}@next"), encoder(4)) == []
    hub.offer_model(server, MODEL, hub.files_of(encoder(4)), newer)  # now main is it, too
    assert differing(palm.load_backbone(MODEL), encoder(4)) == []
    assert differing(palm.load_backbone(EXACT), encoder(3)) == []


def test_a_repository_with_only_a_torch_file_will_do(server: FileServer) -> None:
    files = hub.files_of(encoder())
    del files["model.safetensors"]
    buffer = io.BytesIO()
    torch.save(from_ours(encoder().state_dict(), "huggingface"), buffer)
    hub.offer_model(server, "someone/older", {**files, "pytorch_model.bin": buffer.getvalue()})
    assert differing(palm.load_backbone("someone/older"), encoder()) == []


def test_weights_in_shards_come_whole(server: FileServer) -> None:
    files = hub.files_of(encoder())
    weights = load(files.pop("model.safetensors"))
    first, second = "model-00001-of-00002.safetensors", "model-00002-of-00002.safetensors"
    shards: dict[str, dict[str, Tensor]] = {first: {}, second: {}}
    places = {name: (first, second)[number % 2] for number, name in enumerate(weights)}
    for name, shard in places.items():
        shards[shard][name] = weights[name]
    index = {"model.safetensors.index.json": json.dumps({"weight_map": places}).encode()}
    parts = {name: save(tensors) for name, tensors in shards.items()}
    hub.offer_model(server, "someone/large-bert", {**files, **index, **parts})
    assert differing(palm.load_backbone("someone/large-bert"), encoder()) == []


# Names and paths


def test_a_folder_that_is_there_wins(server: FileServer) -> None:
    Path(MODEL).mkdir(parents=True)
    assert pretrained_directory(MODEL) == pretrained_directory(Path(MODEL)) == Path(MODEL)
    assert server.requests == []


@pytest.mark.parametrize(
    "value",
    ["model", "./some/model", "../some/model", "/some/model", "a/b/c", "a/b@", "", "a/" + 300 * "b", "a/ü"],
)
def test_what_has_another_form_is_a_path(server: FileServer, value: str) -> None:
    assert pretrained_directory(value) == Path(value)
    assert server.requests == []


def test_a_folder_that_was_not_downloaded_says_how(server: FileServer) -> None:
    message = f"{Path('pretrain/BERT-zh-base').absolute()}; `palm download BERT-zh-base`"
    with pytest.raises(StorageError, match=re.escape(message)):
        pretrained_directory("pretrain/BERT-zh-base")
    assert server.requests == []


def refused(value: str) -> str:
    """What is said after the folder that is not there."""
    with pytest.raises(StorageError) as error:
        pretrained_directory(value)
    folder, _, rest = str(error.value).partition("; model ")
    assert folder == f"no such folder: {Path(value).absolute()}"
    return rest


def test_a_wrong_name_is_an_error_with_the_server(server: FileServer) -> None:
    hub.refuse_model(server, "google-bert/bert-base-casd", 401, "RepoNotFound")
    message = refused("google-bert/bert-base-casd")
    assert message.startswith(f"google-bert/bert-base-casd: {server.url} ")
    assert "HF_TOKEN" in message


def test_a_gated_model_a_wrong_revision_and_a_wrong_token_are_errors(server: FileServer) -> None:
    hub.refuse_model(server, "someone/gated", 403, "GatedRepo")
    message = refused("someone/gated")
    assert message.startswith("someone/gated: ")
    assert f"{server.url}/someone/gated" in message
    assert "HF_TOKEN" in message
    hub.refuse_model(server, MODEL, 404, "RevisionNotFound", "v9")
    assert refused(f"{MODEL}@v9").startswith(f"{MODEL}@v9: {server.url} ")
    assert "'v9'" in refused(f"{MODEL}@v9")
    hub.refuse_model(server, "someone/other", 401, "")
    server.headers["/api/models/someone/other/revision/main"] = {
        "X-Error-Message": "Invalid credentials in Authorization header"
    }
    assert "HF_TOKEN" in refused("someone/other")


@pytest.mark.parametrize("status", [401, 404, 500, 503])
def test_the_status_of_a_refusal_is_told(server: FileServer, status: int) -> None:
    hub.refuse_model(server, "someone/broken", status, "")
    assert str(status) in refused("someone/broken")


@pytest.mark.usefixtures("server")
def test_what_is_neither_cached_nor_to_be_reached_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
    assert refused(MODEL).startswith(f"{MODEL}: HF_HUB_OFFLINE ")
    assert str(constants.HF_HUB_CACHE) in refused(MODEL)
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", False)
    with file_server() as closed:
        url = closed.url
    monkeypatch.setattr(constants, "ENDPOINT", url)
    assert re.fullmatch(rf"{MODEL}: {url} .*refused.* HF_ENDPOINT", refused(MODEL))


def test_a_model_without_weights_is_an_error(server: FileServer) -> None:
    hub.offer_model(server, "someone/empty", {"config.json": b"{}", "tf_model.h5": b"?"})
    message = refused("someone/empty")
    assert message.startswith("someone/empty: ")
    assert "(model.safetensors, " in message


# Where it can be named


@pytest.mark.usefixtures("server")
def test_a_run_starts_from_it_and_its_resolved_configuration_holds_no_path_of_the_cache(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    Controller(auto(tmp_path), argv=[]).train()
    text = (tmp_path / "out" / "resolved_config.yaml").read_text(encoding="utf-8")
    assert constants.HF_HUB_CACHE not in text
    resolved = yaml.safe_load(text)
    assert resolved["global"]["pretrain_path"] == EXACT
    assert resolved["global"]["backbone"] == "auto"
    assert resolved["backbone"]["hidden_size"] == 8

    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
    cache = shutil.move(constants.HF_HUB_CACHE, tmp_path / "elsewhere")
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(cache))
    again = Controller(resolved, argv=[])
    assert again.run.to_dict() == resolved
    vocabulary = again.run.tasks[0].reader.settings["vocab_path"]
    assert vocabulary == pretrained_directory(MODEL) / "vocab.txt"
    assert differing(again.training().model.backbone, encoder()) == []


@pytest.mark.usefixtures("server")
def test_a_configuration_that_names_its_encoder_keeps_the_name(tmp_path: Path) -> None:
    config = tiny.config(tiny.write_files(tmp_path), "cls", pretrain_path=f"{MODEL}@main", use_gpu=False)
    controller = Controller({**config, "backbone_config_path": None, **SIZES}, argv=[])
    assert controller.run.to_dict()["global"]["pretrain_path"] == f"{MODEL}@main"
    controller.load_pretrain()
    assert differing(controller.training().model.backbone, encoder()) == []


def test_a_wrong_name_in_a_configuration_is_reported_with_its_line(
    server: FileServer, tmp_path: Path
) -> None:
    hub.refuse_model(server, "someone/else", 401, "RepoNotFound")
    config = {**auto(tmp_path), "pretrain_path": "someone/else"}
    file = tmp_path / "config.yaml"
    file.write_text(yaml.safe_dump(config, sort_keys=False), encoding="utf-8")
    line = file.read_text(encoding="utf-8").splitlines().index("pretrain_path: someone/else") + 1
    with pytest.raises(
        ConfigError, match=rf"config\.yaml:{line}: pretrain_path: no such folder: .*someone/else; "
    ):
        Controller(file, argv=[])


# The variables of Hugging Face's library
