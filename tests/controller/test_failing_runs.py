"""Runs that fail on their way (infinite numbers, a full disk) keep their last checkpoint and name it."""

from __future__ import annotations

import errno
import math
import os
from pathlib import Path
from typing import Any

import pytest
import torch

from helpers import tiny
from helpers.messages import raises
from palm.controller.controller import Controller
from palm.core.errors import StorageError, TrainingError
from palm.core.io import verify
from palm.train.callbacks import Event, Started
from palm.train.loop import Step, Training


def controller(folder: Path, *tasks: str, **settings: Any) -> Controller:
    return tiny.controller(folder, *tasks, **{"overwrite": False, **settings})


def test_numbers_that_exploded_spoil_no_checkpoint(folder: Path) -> None:
    runs: list[Training] = []

    def explode(event: Event) -> None:
        if isinstance(event, Started):
            runs.append(event.training)
        elif isinstance(event, Step) and event.number == 7:
            with torch.no_grad():
                runs[0].model.backbone.get_parameter("pooler.bias")[0] = math.inf

    run = controller(folder, "cls", save_every_n_steps=4, num_epochs=1)
    with raises(TrainingError, "global step 8", str(folder / "out"), "step_4"):
        run.train([explode])
    assert sorted(path.name for path in (folder / "out").glob("step_*")) == ["step_4"]


def test_a_model_that_exploded_is_not_saved(folder: Path) -> None:
    training = controller(folder, "cls").training()
    task = training.tasks[0]
    with torch.no_grad():
        task.head.get_parameter("out.bias").fill_(math.nan)
    from palm.train.saving import save_model

    with pytest.raises(TrainingError, match=r"'cls'.* 0 .*head\.out\.bias"):
        save_model(training, [task], folder / "model")
    assert not (folder / "model").exists()


def test_a_full_disk_says_what_is_whole_and_how_to_resume(
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
    assert str(folder / "out" / "step_8") in message
    assert "disk" in message
    assert f"{folder / 'out'}: step_4; " in message
    assert sorted(path.name for path in (folder / "out").glob("*step*")) == ["step_4"]
    controller(folder, "cls", save_every_n_steps=4, num_epochs=1, resume="auto").train()
    verify(folder / "out" / "cls" / "infer_model")
