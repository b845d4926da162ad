"""What a run promises: nothing of others is touched, no checkpoint is spoiled, and it says how to go on."""

from __future__ import annotations

import errno
import math
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
import yaml

import palm
from helpers import tiny
from palm.controller import Controller
from palm.core.errors import ConfigError, StorageError, TrainingError
from palm.core.files.manifest import read_json, verify
from palm.engine.training.events import Event, Started
from palm.engine.training.loop import Step, Training


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
    with pytest.raises(
        StorageError, match=r"holds an earlier run, of .* \(step_5, step_10, cls/infer_model\)"
    ):
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
    assert "learning_rate: 0.001 in the checkpoint, 0.002 in this run" in str(caught.value)
    assert "cls.train_file has changed: as many rows, with other contents" in str(caught.value)
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
    with pytest.raises(ConfigError, match=rf"task '{name}': its folder under save_path would be one that"):
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


@pytest.mark.parametrize("value", [".inf", ".nan", "inf"])
def test_a_learning_rate_must_be_finite(folder: Path, value: str) -> None:
    with pytest.raises(
        ConfigError, match=r"learning_rate should be a (finite number, not inf|number, not \.nan)"
    ):
        Controller(tiny.config(folder, "cls"), argv=["--learning_rate", value])


def test_numbers_that_exploded_spoil_no_checkpoint(folder: Path) -> None:
    runs: list[Training] = []

    def explode(event: Event) -> None:
        if isinstance(event, Started):
            runs.append(event.training)
        elif isinstance(event, Step) and event.number == 7:
            with torch.no_grad():
                runs[0].model.backbone.get_parameter("pooler.bias")[0] = math.inf

    run = controller(folder, "cls", save_every_n_steps=4, num_epochs=1)
    with pytest.raises(TrainingError) as caught:
        run.train([explode])
    assert "global step 8" in str(caught.value)
    assert "whole under" in str(caught.value)
    assert "to go on from step_4" in str(caught.value)
    assert sorted(path.name for path in (folder / "out").glob("step_*")) == ["step_4"]


def test_a_model_that_exploded_is_not_saved(folder: Path) -> None:
    training = controller(folder, "cls").training()
    task = training.tasks[0]
    with torch.no_grad():
        task.head.get_parameter("out.bias").fill_(math.nan)
    from palm.engine.run.saving import save_model

    with pytest.raises(TrainingError, match=r"the model of 'cls' at global step 0 has .* in head\.out\.bias"):
        save_model(training, task, folder / "model")
    assert not (folder / "model").exists()


def test_a_full_disk_says_what_is_whole_and_how_to_go_on(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    well = os.fsync

    def full(handle: int) -> None:
        path = os.readlink(f"/proc/self/fd/{handle}")  # noqa: PTH115
        if "step_8" in path:
            raise OSError(errno.ENOSPC, "No space left on device")
        well(handle)

    if not Path("/proc/self/fd").exists():
        pytest.skip("no /proc")
    run = controller(folder, "cls", save_every_n_steps=4, num_epochs=1)
    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(StorageError) as caught:
        run.train()
    monkeypatch.undo()
    message = str(caught.value)
    assert f"cannot write {folder / 'out' / 'step_8'}" in message
    assert ": the disk is full; free some space" in message
    assert f"whole under {folder / 'out'}: step_4; to go on from step_4: " in message
    assert sorted(path.name for path in (folder / "out").glob("*step*")) == ["step_4"]
    controller(folder, "cls", save_every_n_steps=4, num_epochs=1, resume="auto").train()
    verify(folder / "out" / "cls" / "infer_model")


def test_a_disk_that_is_full_at_the_first_line_of_the_history_is_told_in_the_same_words(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    well = Path.open

    def full(path: Path, *args: Any, **settings: Any) -> Any:
        if path.name == "history.jsonl" and args[:1] == ("a",):
            raise OSError(errno.ENOSPC, "No space left on device", str(path))
        return well(path, *args, **settings)

    run = controller(folder, "cls", num_epochs=1)
    monkeypatch.setattr(Path, "open", full)
    with pytest.raises(StorageError, match=r"history\.jsonl: the disk is full; free some space"):
        run.train()


PROGRAM = """
import os, signal, sys
import palm

def after(event):
    if getattr(event, "number", 0) == 3:
        os.kill(os.getpid(), getattr(signal, sys.argv[1]))
        if sys.argv[2] == "twice":
            os.kill(os.getpid(), getattr(signal, sys.argv[1]))

palm.Controller("config.yaml", argv=sys.argv[3:]).train([after])
"""


def program(folder: Path, *words: str) -> subprocess.CompletedProcess[str]:
    (folder / "run.py").write_text(PROGRAM, encoding="utf-8")
    config = tiny.config(folder, "cls", num_epochs=1, overwrite=False)
    for name, task in config.pop("tasks").items():
        (folder / f"{name}.yaml").write_text(yaml.safe_dump(task), encoding="utf-8")
    (folder / "config.yaml").write_text(yaml.safe_dump(config), encoding="utf-8")
    environment = {key: value for key, value in os.environ.items() if not key.startswith("PYTEST")}
    return subprocess.run(
        [sys.executable, "run.py", *words],
        cwd=folder,
        env={**environment, "OMP_NUM_THREADS": "1", "PYTHONPATH": os.pathsep.join(sys.path)},
        capture_output=True,
        text=True,
        encoding="utf-8",
        check=False,
    )


@pytest.mark.skipif(sys.platform == "win32", reason="signals of POSIX")
@pytest.mark.parametrize("name", ["SIGTERM", "SIGUSR1"])
def test_a_signal_ends_a_run_with_a_checkpoint_and_the_command_to_go_on(folder: Path, name: str) -> None:
    stopped = program(folder, name, "once")
    number = getattr(signal, name)
    assert stopped.returncode == 128 + number, stopped.stderr
    assert f"{name}: the step at hand is finished and saved; a second one ends at once" in stopped.stderr
    assert f"{name}: stopped after global step 3; whole under" in stopped.stderr
    assert f"to go on from step_3: python run.py {name} once --resume auto" in stopped.stderr
    assert program(folder, name, "once", "--resume", "auto").returncode == 0
    resumed = models(folder / "out")
    controller(folder, "cls", num_epochs=1, save_path=str(folder / "whole")).train()
    assert resumed == models(folder / "whole")


@pytest.mark.skipif(sys.platform == "win32", reason="signals of POSIX")
def test_a_second_signal_ends_at_once(folder: Path) -> None:
    stopped = program(folder, "SIGTERM", "twice")
    assert stopped.returncode == -signal.SIGTERM
    assert not list((folder / "out").glob("step_*"))


def test_a_host_with_handlers_of_its_own_keeps_them(folder: Path) -> None:
    before = signal.getsignal(signal.SIGTERM)
    seen = []

    controller(folder, "cls", num_epochs=0.5).train([lambda _: seen.append(signal.getsignal(signal.SIGTERM))])
    assert set(seen) == {before}
    assert palm.load_model(folder / "out" / "cls" / "infer_model").task == "cls"
