"""`palm inspect` tells of every kind of directory what it holds."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import palm
from helpers import tiny
from helpers.golden_forward import FOLDER
from helpers.shared import minilm
from palm.cli import main
from palm.controller.controller import Controller
from palm.core.errors import StorageError
from palm.export import to_hugging_face
from palm.train.callbacks import Ended, Logged, Recorded, write_events


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run of two targets and a checkpoint."""
    folder = tiny.write_files(tmp_path_factory.mktemp("run"))
    config = tiny.config(
        folder, "cls", "mrc", num_epochs=1, save_every_n_steps=10, use_ema=True, ema_decay=0.9
    )
    config["tasks"]["cls"]["label_map"] = {"0": 0, "green": 1, "2": 2, "3": 3}
    text = (folder / "cls.tsv").read_text(encoding="utf-8")
    (folder / "cls.tsv").write_text(text.replace("\n1\t", "\ngreen\t"), encoding="utf-8")
    Controller(config, argv=[]).train()
    return folder / "out"


def told(folder: Path, capsys: pytest.CaptureFixture[str]) -> dict[str, Any]:
    """What `palm inspect --json` says."""
    capsys.readouterr()
    assert main(["inspect", str(folder), "--json"]) == 0
    facts: dict[str, Any] = json.loads(capsys.readouterr().out)
    assert facts["files"]["number"] > 0
    return facts


ENCODER = (
    40 * 32 + 64 * 32 + 2 * 32 + 2 * 32 + 2 * (4 * (32 * 32 + 32) + 2 * 32 * 64 + 64 + 32 + 4 * 32) + 32 * 33
)
"""Tables, their norm, two layers (four projections, feed-forward, two norms), pooler."""


def test_a_saved_model(run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    facts = told(run / "cls" / "infer_model", capsys)
    assert facts["format"] == "palm-model, version 2"
    assert facts["task"] == "cls"
    assert facts["backbone"]["name"] == "bert"
    assert facts["backbone"]["hidden_size"] == 32
    assert facts["parameters"]["backbone"] == {"number": ENCODER, "tensors": 39, "dtype": "float32"}
    assert facts["parameters"]["paradigm"]["number"] == 4 * 32 + 4
    assert (facts["reader"]["name"], facts["reader"]["max_seq_len"]) == ("cls", 24)
    assert facts["paradigm"]["n_classes"] == 4
    assert facts["labels"] == ["0", "green", "2", "3"]
    assert facts["vocabulary"] == {"file": "vocab.txt", "tokens": 35, "lower case": False}
    assert facts["versions"] == {"palm": palm.__version__}


def test_a_checkpoint(run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    facts = told(run / "step_10", capsys)
    assert facts["format"] == "palm-checkpoint, version 3"
    assert facts["step"] == 10
    assert facts["averages"] is True
    assert facts["parameters"]["backbone"]["number"] == ENCODER
    assert facts["parameters"]["mrc"]["number"] == 2 * 32 + 2
    assert sum(task["step"] for task in facts["tasks"].values()) == 10
    assert facts["tasks"]["cls"]["labels"] == ["0", "green", "2", "3"]
    assert facts["tasks"]["mrc"]["paradigm"]["max_answer_len"] == 4
    assert facts["tasks"]["mrc"]["target"] is True


def test_everything_in_a_run_is_named(run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = tmp_path / "a run"
    shutil.copytree(run, folder)
    for place in ("cls/best_model", "cls/infer_model.step4", "cls/infer_model.step12"):
        shutil.copytree(run / "cls" / "infer_model", folder / place)
    events: list[Recorded] = [Logged(18, "cls"), Logged(19, "mrc"), Ended(20, "interrupted")]
    write_events(folder / "history.jsonl", events)
    facts = told(folder, capsys)
    assert facts["models"] == {
        "best": ["cls/best_model"],
        "last": ["cls/infer_model", "mrc/infer_model"],
        "joint": ["model"],
        "after step 4": ["cls/infer_model.step4"],
        "after step 12": ["cls/infer_model.step12"],
    }
    assert (facts["state"], facts["step"]) == ("interrupted", 19)


def test_files_that_a_run_removes_meanwhile_are_not_counted(
    run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = Path(shutil.copytree(run, tmp_path / "run"))
    files = sum(path.is_file() for path in folder.rglob("*"))
    gone = sum(path.is_file() for path in (folder / "step_10").rglob("*"))
    walk = os.walk

    def removing(top: Path) -> Iterator[tuple[str, list[str], list[str]]]:
        for place, folders, names in walk(top):
            if Path(place).name == "step_10":
                shutil.rmtree(place)
            yield place, folders, names

    monkeypatch.setattr(os, "walk", removing)
    assert palm.inspect_directory(folder)["files"]["number"] == files - gone
    shutil.copytree(run / "step_10", folder / "step_10")
    with pytest.raises(StorageError, match="step_10"):
        palm.inspect_directory(folder / "step_10")


def test_an_export(run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    to_hugging_face(run / "cls" / "infer_model", tmp_path / "hf")
    facts = told(tmp_path / "hf", capsys)
    assert facts["format"] == "palm-export to hf, version 1"
    assert facts["architecture"] == "BertForSequenceClassification"
    assert facts["parameters"]["number"] == ENCODER + 4 * 32 + 4
    assert facts["tasks"]["cls"]["labels"] == ["0", "green", "2", "3"]


def test_a_real_bert_of_hugging_face(capsys: pytest.CaptureFixture[str]) -> None:
    facts = told(minilm(), capsys)
    assert facts["format"] == "huggingface"
    assert facts["architecture"] == "BertModel"
    assert facts["backbone"]["num_hidden_layers"] == 6
    assert facts["parameters"] == {"number": 22_713_216, "tensors": 103, "dtype": "float32"}
    assert (facts["vocabulary"]["file"], facts["vocabulary"]["tokens"]) == ("tokenizer.json", 30522)
    assert "transformers" in facts["versions"]


@pytest.mark.parametrize("kind", ["bert", "ernie"])
@pytest.mark.parametrize("place", [".", "params"])
def test_paddlepalms_directories(kind: str, place: str, capsys: pytest.CaptureFixture[str]) -> None:
    facts = told(FOLDER / f"pretrain_{kind}" / place, capsys)
    assert facts["format"] == "paddlepalm"
    assert facts["backbone"]["name"] == kind
    assert facts["backbone"]["hidden_size"] == 32
    assert facts["parameters"]["tensors"] == {"bert": 39, "ernie": 40}[kind]


def test_a_header_is_enough(run: Path, tmp_path: Path) -> None:
    for name in ("config.json", "vocab.txt", "heads.safetensors"):
        shutil.copy(run / "cls" / "infer_model" / name, tmp_path)
    weights = (run / "cls" / "infer_model" / "model.safetensors").read_bytes()
    header = 8 + int.from_bytes(weights[:8], "little")
    with (tmp_path / "model.safetensors").open("wb") as file:
        file.write(weights[:header])
        file.truncate(len(weights))  # zeros that no disk has to hold
    whole, hollow = (palm.inspect_directory(folder) for folder in (run / "cls" / "infer_model", tmp_path))
    assert hollow["parameters"] == whole["parameters"]
