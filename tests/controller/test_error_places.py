"""A mistake is reported once, at the place of the setting, and with its actual cause."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch

import palm
from helpers import tiny
from helpers.messages import raises
from palm.core.errors import ConfigError, PalmError, StorageError
from palm.core.saved import load_tensors, save_tensors

POINTER = "version https://git-lfs.github.com/spec/v1\noid sha256:4d7a21\nsize 12345\n"
"""What Git LFS puts in the place of a file that was not fetched."""


def controller(folder: Path, change: dict[str, Any], task: str = "cls", **own: Any) -> palm.Controller:
    """A Controller of one task, from files; `own` are settings of the task's file, None takes one away."""
    config = tiny.config(folder, task)
    del config["save_every_n_steps"]  # the lines of the others are expected
    config |= change
    settings = {**config["tasks"][task], **own}
    config["tasks"] = {task: {name: value for name, value in settings.items() if value is not None}}
    return palm.Controller(tiny.write_config(folder, config).name, argv=[])


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tiny.write_files(tmp_path)


@pytest.mark.parametrize(
    ("change", "own", "place"),
    [
        ({"batch_size": 4.5}, {}, "config.yaml:7"),
        ({"num_epochs": "many"}, {}, "config.yaml:8"),
        ({}, {"n_classes": 0}, "cls.yaml:5"),
        ({}, {"n_classes": None, "label_map": ["red", "blue"]}, "cls.yaml:5"),
        ({"lora": {"targets": ["nowhere"]}}, {}, "config.yaml:15"),
        ({}, {"lora": {"targets": ["nowhere"]}}, "cls.yaml:6"),
        ({"stages": []}, {}, "config.yaml:15"),
        ({"stages": [{"name": "a"}, {"name": "a"}]}, {}, "config.yaml:15"),
        ({"loggers": "nope"}, {}, "config.yaml:15"),
        ({"callbacks": "nope.Call"}, {}, "config.yaml:15"),
        ({"callbacks": "Call"}, {}, "config.yaml:15"),
    ],
)
def test_a_wrong_value_is_one_line_with_its_place(
    change: dict[str, Any], own: dict[str, Any], place: str, folder: Path
) -> None:
    with pytest.raises(ConfigError) as caught:
        controller(folder, change, **own).train()
    (line,) = caught.value.problems
    assert line.startswith(f"{place}: ")


def test_weights_that_are_not_numbers_are_named(folder: Path) -> None:
    source = folder / "weights"
    tiny.controller(folder, "cls", max_steps=1).train()
    palm.convert(folder / "out/cls/infer_model", source)
    weights = load_tensors(source / "model.safetensors")
    name = next(name for name in weights if "word_embeddings" in name)
    weights[name][3, 2] = torch.nan
    (source / "model.safetensors").unlink()
    save_tensors(source / "model.safetensors", weights)
    with raises(StorageError, "embeddings.word.weight"):
        controller(folder, {"pretrain_path": "weights"}).train()
    (source / "model.safetensors").write_text(POINTER, encoding="utf-8")
    with raises(StorageError, "git lfs pull"):
        controller(folder, {"pretrain_path": "weights"}).train()


def test_something_other_than_a_checkpoint_to_resume_from_is_identified(folder: Path) -> None:
    settings = {"save_every_n_steps": 5, "overwrite": False}
    controller(folder, settings).train()
    out = folder / "out"
    for resume, other, words in (
        (out / "cls/infer_model", "adam", ("saved model", "start_from")),
        (out, "adam", ("is a run", str(out / "step_20"))),
        (out / "step_5", "lamb", ("optimizer", "'adam'", "'lamb'", "start_from")),
    ):
        again = controller(folder, {"save_path": "other", "resume": str(resume), "optimizer": other})
        with pytest.raises(PalmError) as caught:
            again.train()
        message = str(caught.value)
        assert [word for word in words if word not in message] == [], message


def test_json_lines_in_place_of_one_document_are_reported(folder: Path) -> None:
    rows = [json.dumps({"data": []})] * 2
    (folder / "rows.json").write_text("\n".join(rows), encoding="utf-8")
    with raises(PalmError, "rows.json:2:1: ", ".jsonl"):
        controller(folder, {}, "mrc", train_file="rows.json").train()
