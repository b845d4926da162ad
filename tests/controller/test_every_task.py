"""All kinds of tasks in one run: a killed run ends with the same bits, and every task predicts."""

from __future__ import annotations

import os
import signal
from ast import literal_eval
from pathlib import Path

import pytest
import yaml

import palm.compat as palm
from helpers.equal import differing, tensors_in
from helpers.loaded import run_script
from helpers.saved import run_card_example
from palm.cli.starter.project import KINDS, write_project
from palm.paradigm import HEADS
from palm.predict.loading import load_model
from palm.train.model_card import example_input

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
    assert differing(tensors_in(project / "whole"), tensors_in(project / "killed")) == []
    for task in [*KINDS, "regression"]:
        assert len(controller.pred(task)) > 0, task
        run_card_example(project / "whole" / task / "infer_model")
    model = load_model(project / "whole", precision="fp32")
    for task, own in model.tasks.items():
        texts = literal_eval(example_input(own.reader, HEADS.name_of(type(own.head))))
        rows = model.predict_rows(model.encode(texts, [task]))
        assert [row[task] for row in rows] == own.predict(texts), task


"""Tasks of one text, whose rows are the same."""
