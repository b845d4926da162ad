"""A second run into the same folder, by the same controller or a new one: resumed, replaced or refused."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch

import palm
from helpers import tiny
from palm.backbone import BERT
from palm.controller.controller import Controller
from palm.core.errors import ConfigError, StorageError
from palm.core.files.untrusted import read_json
from palm.pretrained.families import write_hugging_face
from palm.train.loop import Step


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return tiny.write_files(tmp_path)


def controller(folder: Path, *tasks: str, **settings: Any) -> Controller:
    return Controller(tiny.config(folder, *tasks, **{"overwrite": False, **settings}), argv=[])


def models(folder: Path) -> dict[str, bytes]:
    return {
        path.parent.parent.name: path.read_bytes() for path in folder.glob("*/infer_model/model.safetensors")
    }


def test_a_second_run_continues_replaces_or_stops(folder: Path) -> None:
    controller(folder, "cls", num_epochs=1, save_every_n_steps=5).train()
    first, trained = read_json(folder / "out" / "run.json")["id"], models(folder / "out")
    (folder / "out" / "notes.txt").write_text("mine", encoding="utf-8")
    with pytest.raises(StorageError, match=r"out .*\(step_5, step_10, cls/infer_model\)"):
        controller(folder, "cls").train()
    controller(folder, "cls", num_epochs=1, save_every_n_steps=5, resume="auto").train()
    assert read_json(folder / "out" / "run.json")["id"] == first
    assert models(folder / "out") == trained
    controller(folder, "cls", num_epochs=1, learning_rate=2e-3, overwrite=True).train()
    assert read_json(folder / "out" / "run.json")["id"] != first
    assert models(folder / "out") != trained
    assert not (folder / "out" / "step_5").exists()
    assert (folder / "out" / "notes.txt").read_text(encoding="utf-8") == "mine"


def test_a_changed_setting_is_named_and_the_record_of_the_old_run_stays(folder: Path) -> None:
    controller(folder, "cls", num_epochs=1, save_every_n_steps=5).train()
    before = (folder / "out" / "resolved_config.yaml").read_bytes()
    lines = (folder / "cls.tsv").read_text(encoding="utf-8").replace("red", "blue")
    (folder / "cls.tsv").write_text(lines, encoding="utf-8")
    with pytest.raises(StorageError) as caught:
        controller(folder, "cls", num_epochs=1, learning_rate=2e-3, resume="auto").train()
    assert "learning_rate: 0.001 " in str(caught.value)
    assert " 0.002 " in str(caught.value)
    assert "cls.train_file has changed" in str(caught.value)
    assert (folder / "out" / "resolved_config.yaml").read_bytes() == before


def test_resume_auto_at_the_beginning_loads_the_pretrained_weights(folder: Path) -> None:
    controller(folder, "mlm", num_epochs=1, save_path=str(folder / "first")).train()
    pretrained = {"pretrain_path": str(folder / "first" / "mlm" / "infer_model"), "num_epochs": 1}
    controller(folder, "cls", save_path=str(folder / "a"), **pretrained).train()
    controller(folder, "cls", save_path=str(folder / "b"), resume="auto", **pretrained).train()
    assert models(folder / "a") == models(folder / "b")


@pytest.mark.parametrize("name", ["step_4", "best"])
def test_a_task_cannot_take_the_place_of_a_checkpoint(folder: Path, name: str) -> None:
    config = tiny.config(folder, "cls")
    config["tasks"] = {name: config["tasks"]["cls"]}
    with pytest.raises(ConfigError, match=rf"task '{name}': .*save_path"):
        Controller({**config, "task_instance": name}, argv=[])


def test_a_name_with_dots_trains_resumes_and_predicts(folder: Path) -> None:
    config = tiny.config(folder, "cls", save_every_n_steps=5, num_epochs=1)
    config["tasks"] = {"a.b": config["tasks"]["cls"], "a": config["tasks"]["cls"]}
    config["task_instance"] = ["a.b", "a"]
    Controller(config, argv=[]).train()
    trained = models(folder / "out")
    assert set(trained) == {"a.b", "a"}
    again = Controller({**config, "resume": str(folder / "out" / "step_5")}, argv=[])
    again.train()
    assert models(folder / "out") == trained
    assert len(again.pred("a.b")) == 40


def weights_of(controller: Controller, folder: Path) -> dict[str, torch.Tensor]:
    controller.train()
    model = palm.load_model(folder / "out" / "cls")
    return {**model.backbone.state_dict(), **model.head.state_dict()}


def test_a_second_training_starts_from_scratch_as_a_new_controller_would(folder: Path) -> None:
    controller = Controller(tiny.config(folder, "cls", "mlm", num_epochs=0.5), argv=[])
    first, second = weights_of(controller, folder), weights_of(controller, folder)
    assert all(torch.equal(first[name], second[name]) for name in first)


def test_a_training_after_an_interruption_starts_from_scratch(folder: Path) -> None:
    expected = weights_of(Controller(tiny.config(folder, "cls", num_epochs=0.5), argv=[]), folder)
    controller = Controller(tiny.config(folder, "cls", num_epochs=0.5), argv=[])
    with pytest.raises(KeyboardInterrupt):
        controller.train(callbacks=[_interrupted])
    again = weights_of(controller, folder)
    assert all(torch.equal(expected[name], again[name]) for name in expected)


def _interrupted(event: Any) -> None:
    if isinstance(event, Step) and event.number == 3:
        raise KeyboardInterrupt


def test_pretrained_weights_are_loaded_again_for_a_second_training(folder: Path) -> None:
    (folder / "weights").mkdir()
    bert = BERT(**tiny.BACKBONE)
    write_hugging_face(bert.state_dict(), bert, folder / "weights")
    controller = Controller(tiny.config(folder, "cls", num_epochs=0.5), argv=[])
    controller.load_pretrain(folder / "weights")
    first = weights_of(controller, folder)
    second = weights_of(controller, folder)
    assert all(torch.equal(first[name], second[name]) for name in first)
    assert json.loads((folder / "weights" / "config.json").read_text("utf-8"))["model_type"] == "bert"
