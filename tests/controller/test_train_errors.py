"""`palm train` on bad input: one message with place and remedy, exit code 2, nothing half-written."""

from __future__ import annotations

import os
import re
from pathlib import Path

import pytest

from helpers import tiny
from helpers.loaded import run_script
from palm.cli import main


@pytest.fixture
def run(tmp_path: Path) -> Run:
    return Run(tmp_path)


class Run:
    """A configuration in files that can be spoilt, and the command on it."""

    def __init__(self, folder: Path) -> None:
        self.folder = tiny.write_files(folder)
        self.settings = tiny.config(folder, "cls", "match", "mrc", num_epochs=1)
        self.tasks = self.settings["tasks"]

    def train(self, capsys: pytest.CaptureFixture[str], *arguments: str) -> str:
        """What `palm train` writes to stderr; it must exit with 2 and leave no half-written file."""
        self.write()
        before = {path for path in self.folder.rglob("*") if path.is_file()}
        code = main(["train", str(self.folder / "config.yaml"), "--task_dir", "tasks", *arguments])
        message = capsys.readouterr().err
        after = {path for path in self.folder.rglob("*") if path.is_file()}
        assert code == 2
        assert message.startswith("error: ")
        assert "Traceback" not in message
        of_a_run = {"resolved_config.yaml", "run.json", "history.jsonl", ".run.lock"}
        assert {path.name for path in after - before} <= of_a_run
        return message.replace(str(self.folder) + os.sep, "").replace("\\", "/")

    def write(self) -> None:
        tiny.write_config(self.folder, self.settings, "tasks")


def test_an_empty_train_file_and_a_setting_that_went(run: Run, capsys: pytest.CaptureFixture[str]) -> None:
    run.tasks["cls"] |= {"train_file": "", "split": {"dev": 0.5}}
    run.settings["callbacks"] = "mine.Watch"
    message = run.train(capsys)
    assert "task 'cls' has no train_file" in message
    assert "train(callbacks=[" in message


def test_components_that_do_not_fit_together(run: Run, capsys: pytest.CaptureFixture[str]) -> None:
    run.tasks["cls"]["paradigm"] = "mlm"
    features, loss = run.train(capsys).splitlines()
    assert re.match(r"error: task 'cls': .*head .*'mask_pos' .*int64\[masks\].*backbone ", features)
    assert re.fullmatch(r"task 'cls': .*loss .*'mask_label' .*int64\[masks\].* label_ids", loss)


def test_predicting_without_a_model_or_a_file(run: Run, capsys: pytest.CaptureFixture[str]) -> None:
    run.write()
    config = [str(run.folder / "config.yaml"), "--task_dir", "tasks"]
    assert main(["predict", *config, "--task", "cls"]) == 2
    assert re.search(r"out/cls is not .*: there is no such folder; train first", capsys.readouterr().err)
    assert main(["predict", *config, "--task", "sentiment"]) == 2
    assert "'sentiment'" in capsys.readouterr().err
    assert main(["predict", *config, "--task", "cls", "--cls.pred_file", "nowhere.tsv"]) == 2
    assert "no such file" in capsys.readouterr().err
    assert main(["predict", "--model", "here"]) == 2
    assert "missing: --input, --output" in capsys.readouterr().err


def test_a_script_ends_with_the_message_and_exit_code_2(run: Run) -> None:
    run.tasks["cls"]["n_clases"] = 4
    run.write()
    script = run.folder / "demo.py"
    script.write_text(
        "import palm\npalm.Controller('config.yaml', task_dir='tasks').train()\n", encoding="utf-8"
    )
    status, output = run_script(script, run.folder, "--batch_sise=8")
    assert status == 2
    assert output.startswith("error: ")
    assert "tasks/cls.yaml:6: nothing uses 'n_clases'" in output.replace("\\", "/")
    assert "--batch_sise: nothing uses" in output
    assert "Traceback" not in output
