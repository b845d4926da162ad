"""Loggers get the curves, the settings and the results of a run, and keep them on this machine."""

from __future__ import annotations

import errno
import os
import sys
from collections.abc import Mapping
from importlib.util import find_spec
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from helpers.callbacks import at_step, controller, timeless
from palm.core.errors import ConfigError, StorageError
from palm.train.callbacks import Ended, Started
from palm.train.loggers import LOGGERS, Logger, TensorBoard, Wandb, logger_problems


def needs(package: str) -> pytest.MarkDecorator:
    return pytest.mark.skipif(find_spec(package) is None, reason=f"{package} is not installed")


def curve(folder: Path, task: str, name: str) -> dict[int, float]:
    """Step -> a number of a task's logged steps."""
    lines = timeless(folder / "out" / "history.jsonl")
    return {line["step"]: line[name] for line in lines if line["event"] == "step" and line["task"] == task}


@needs("tensorboard")
def test_tensorboard_has_the_curves_of_the_history(tmp_path: Path) -> None:
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    controller(tmp_path, loggers=["tensorboard"]).train()
    found = EventAccumulator(str(tmp_path / "out" / "tensorboard"))
    found.Reload()
    for name in ("loss", "mean_loss", "grad_norm"):
        points = {event.step: event.value for event in found.Scalars(f"cls/{name}")}
        assert points == pytest.approx(curve(tmp_path, "cls", name), rel=1e-6)
    lines = timeless(tmp_path / "out" / "history.jsonl")
    accuracies = {
        line["step"]: line["scores"]["cls"]["accuracy"] for line in lines if line["event"] == "evaluation"
    }
    points = {event.step: event.value for event in found.Scalars("cls/dev_accuracy")}
    assert points == pytest.approx(accuracies, rel=1e-6)
    texts = {
        tag: found.Tensors(tag)[0].tensor_proto.string_val[0].decode() for tag in found.Tags()["tensors"]
    }
    assert "learning_rate: 0.001" in texts["configuration/text_summary"]


@needs("tensorboard")
def test_a_file_in_place_of_the_loggers_folder_is_named(tmp_path: Path) -> None:
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / "tensorboard").write_text("mine", encoding="utf-8")
    with pytest.raises(StorageError, match=f"cannot write {tmp_path / 'out' / 'tensorboard'}: "):
        controller(tmp_path, loggers=["tensorboard"]).train()
    assert (tmp_path / "out" / "tensorboard").read_text(encoding="utf-8") == "mine"


class FullDisk(Logger):
    """A logger whose disk is full after the first points."""

    def start(self, event: Started) -> None:
        pass

    def log(self, points: Mapping[str, float]) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    def end(self) -> None:
        pass


def test_a_disk_that_is_full_for_a_logger_is_named(tmp_path: Path) -> None:
    logger = FullDisk("curves", tmp_path / "out")
    with pytest.raises(StorageError, match=f"cannot write {tmp_path / 'out' / 'curves'}: the disk is full"):
        controller(tmp_path).train(callbacks=[logger])


@needs("tensorboard")
def test_a_resumed_run_continues_with_its_curves(tmp_path: Path) -> None:
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    loggers = ["tensorboard"]
    with pytest.raises(RuntimeError, match="broken"):
        controller(tmp_path, loggers=loggers).train(callbacks=[at_step(27, RuntimeError("broken"))])
    controller(tmp_path, loggers=loggers, resume="auto").train()
    found = EventAccumulator(str(tmp_path / "out" / "tensorboard"))
    found.Reload()
    history = curve(tmp_path, "cls", "loss")
    points = [(event.step, event.value) for event in found.Scalars("cls/loss")]
    assert [step for step, _ in points] == list(history)  # none twice
    assert [value for _, value in points] == pytest.approx(list(history.values()), rel=1e-6)


def test_a_logger_that_is_not_there_is_named_with_the_way_to_get_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (problem,) = logger_problems(["tensorbord"])
    assert "'tensorbord'" in problem
    assert "'tensorboard'" in problem
    assert all(name in problem for name in LOGGERS)
    monkeypatch.setitem(LOGGERS, "no_such_package", (TensorBoard, "pip install 'palm-torch[tensorboard]'"))
    with pytest.raises(ConfigError) as error:
        controller(tmp_path, loggers=["no_such_package"]).train()
    (problem,) = error.value.problems
    assert "loggers: " in problem
    assert "'no_such_package'" in problem
    assert problem.endswith("pip install 'palm-torch[tensorboard]'")


@pytest.mark.parametrize(("key", "mode"), [(None, "offline"), ("secret", None)])
def test_wandb_is_online_with_a_login_and_resumes_under_its_id(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, key: str | None, mode: str | None
) -> None:
    for name in ("WANDB_DIR", "WANDB_MODE", "WANDB_PROJECT"):
        monkeypatch.setenv(name, "")  # restored afterwards
        monkeypatch.delenv(name)
    begun: list[tuple[str | None, str]] = []

    def init(**settings: Any) -> SimpleNamespace:
        begun.append((settings["id"], settings["resume"]))
        return SimpleNamespace(id="run7")

    package = SimpleNamespace(
        api=SimpleNamespace(api_key=key), init=init, log=lambda *_, **__: None, finish=lambda: None
    )
    monkeypatch.setitem(sys.modules, "wandb", package)
    for step in (0, 12):
        logger = Wandb("wandb", tmp_path)
        training = SimpleNamespace(step=step, config=SimpleNamespace(to_dict=dict))
        logger(Started(training))  # type: ignore[arg-type]
        logger(Ended(step, "finished"))
    assert begun == [(None, "allow"), ("run7", "allow")]
    assert os.environ.get("WANDB_MODE") == mode
