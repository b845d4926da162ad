"""All kinds of tasks in one run: a killed run ends with the same bits, and every task predicts."""

from __future__ import annotations

import json
import os
import signal
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
import torch
import yaml

import palm.compat as palm
from helpers.loaded import run_script
from helpers.saved import run_card_example
from palm.cli.starter.project import KINDS, write_project
from palm.core.saved import load_tensors
from palm.paradigm import HEADS

PROGRAM = """
import os, signal, sys
from palm.controller.controller import Controller
from palm.train.loop import Step

def kill(event):
    if isinstance(event, Step) and event.number == 20:
        os.kill(os.getpid(), signal.SIGKILL)

Controller(sys.argv[1], argv=sys.argv[2:]).train(callbacks=[kill])
"""


@pytest.fixture
def project(tmp_path: Path) -> Path:
    """A project with a task for every head; that of real numbers has the rows of counts."""
    folder = tmp_path / "shop"
    write_project(folder, {kind: kind for kind in KINDS})
    count = yaml.safe_load((folder / "count.yaml").read_text(encoding="utf-8"))
    (folder / "regression.yaml").write_text(yaml.safe_dump({**count, "paradigm": "regression"}), "utf-8")
    config = yaml.safe_load((folder / "config.yaml").read_text(encoding="utf-8"))
    names = [*KINDS, "regression"]
    config |= {"task_instance": ", ".join(names), "target_tag": ", ".join("1" * len(names))}
    config |= {"mix_ratio": ", ".join(["1.0"] * len(names)), "mixing": "round_robin", "batch_size": 4}
    config |= {"max_steps": 2 * len(names), "save_every_n_steps": 9, "eval_every_epoch": False}
    (folder / "config.yaml").write_text(yaml.safe_dump(config), encoding="utf-8")
    return folder


def weights(out: Path) -> dict[str, dict[str, torch.Tensor]]:
    return {path.relative_to(out).as_posix(): load_tensors(path) for path in out.rglob("*.safetensors")}


@pytest.mark.skipif(os.name == "nt", reason="Windows has no SIGKILL")
def test_they_train_together_survive_a_kill_and_predict(project: Path) -> None:
    config = str(project / "config.yaml")
    controller = palm.Controller(config, argv=["--save_path", str(project / "whole")])
    controller.train()
    assert {HEADS.name_of(type(task.head)) for task in controller.training().tasks} == {*HEADS}
    (project / "run.py").write_text(PROGRAM, encoding="utf-8")
    status, output = run_script(Path("run.py"), project, config, "--save_path", str(project / "killed"))
    assert status == -signal.SIGKILL, output
    palm.Controller(config, argv=["--save_path", str(project / "killed"), "--resume", "auto"]).train()
    expected = weights(project / "whole")
    found = weights(project / "killed")
    assert found.keys() == expected.keys()
    for path, tensors in expected.items():
        assert tensors.keys() == found[path].keys()
        assert all(torch.equal(value, found[path][name]) for name, value in tensors.items()), path
    for task in [*KINDS, "regression"]:
        assert len(controller.pred(task)) > 0, task
        run_card_example(project / "whole" / task / "infer_model")


def as_one(trainers: list[palm.Trainer], files: Mapping[str, Path], run: Any) -> palm.MultiHeadTrainer:
    """A trainer of several tasks, on the encoder of a run, with files to predict."""
    joint = palm.MultiHeadTrainer(trainers, precision="fp32")
    readers = {}
    tasks = {task.name: task for task in run.tasks}
    for trainer in trainers:
        house = tasks[trainer.name].reader
        published = getattr(palm.reader, type(house).__name__, palm.reader.LoadingReader)
        forms = {"results": published.results, "in_memory": published.in_memory}
        kind: Any = type(type(house).__name__, (palm.reader.LoadingReader, type(house)), forms)
        reader = kind(**house.settings, phase="predict")
        reader.load_data(files[trainer.name], batch_size=4)
        reader.register_with(run.model.backbone)
        trainer.build_predict_forward(run.model.backbone, tasks[trainer.name].head)
        readers[trainer.name] = reader
    joint.build_predict_forward()
    joint.merge_inference_readers(readers)
    return joint


def rounded(value: Any) -> Any:
    """A value with its numbers as pytest compares those that were computed in other batches."""
    if isinstance(value, Mapping):
        return {name: rounded(each) for name, each in value.items()}
    if isinstance(value, list | tuple):
        return [rounded(each) for each in value]
    return pytest.approx(value, abs=1e-5) if isinstance(value, float) else value


def test_together_they_predict_what_each_predicts_alone(project: Path, tmp_path: Path) -> None:
    run = palm.Controller(str(project / "config.yaml"), argv=[]).training()
    files = {}
    for task in run.tasks:
        settings = yaml.safe_load((project / f"{task.name}.yaml").read_text(encoding="utf-8"))
        files[task.name] = project / settings["pred_file"]
    trainers = [palm.Trainer(task.name, precision="fp32") for task in run.tasks]
    together = as_one(trainers, files, run).predict(tmp_path)
    assert together.keys() == {*KINDS, "regression"}
    for trainer in trainers:
        alone = trainer.predict()
        found = together[trainer.name]  # as it was written
        assert len(found) == len(alone) > 0
        assert (dict(found) if isinstance(found, Mapping) else list(found)) == rounded(alone), trainer.name
        assert (tmp_path / trainer.name / "predictions.json").stat().st_size > 0


ONE_TEXT = (
    "cls",
    "multi_label",
    "ordinal",
    "count",
    "regression",
    "embedding",
    "seq_label",
    "span",
    "relation",
)
"""Tasks of one text, whose rows are the same."""


def test_tasks_of_the_same_texts_are_encoded_once(project: Path) -> None:
    run = palm.Controller(str(project / "config.yaml"), argv=[]).training()
    rows = [
        {"text_a": text} for text in ("two red lamps", "a book", "one lamp and two books", "shoes", "red")
    ]
    (project / "texts.jsonl").write_text("".join(f"{json.dumps(row)}\n" for row in rows), encoding="utf-8")
    pairs = [
        {**row, "choices": ["yes", "no", "a lamp"], "candidates": ["yes", "no", "a lamp"]} for row in rows
    ]
    (project / "pairs.jsonl").write_text("".join(f"{json.dumps(row)}\n" for row in pairs), encoding="utf-8")
    passes: list[int] = []
    run.model.backbone.register_forward_hook(lambda *_: passes.append(1))
    for names, file in ((ONE_TEXT, "texts"), (("multiple_choice", "ranking"), "pairs")):
        passes.clear()
        trainers = [palm.Trainer(name, precision="fp32") for name in names]
        found = as_one(trainers, dict.fromkeys(names, project / f"{file}.jsonl"), run).predict()
        assert {name: len(records) for name, records in found.items()} == dict.fromkeys(names, 5)
        assert len(passes) == 2, names  # batches of four texts and of one
