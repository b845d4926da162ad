"""A cell that is interrupted: the step is finished, a checkpoint saved, and the result has what there is."""

from __future__ import annotations

import re
import signal
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from helpers import tiny
from helpers.callbacks import at_step
from helpers.messages import raises
from palm.controller.controller import Controller
from palm.core.errors import StorageError


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    monkeypatch.setitem(sys.modules, "ipykernel", ModuleType("ipykernel"))
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield tiny.write_files(tmp_path)
    signal.signal(signal.SIGINT, before)


def controller(folder: Path, **settings: Any) -> Controller:
    common = {"overwrite": False, "num_epochs": 1, "progress": "none", **settings}
    return tiny.controller(folder, "cls", **common)


INTERRUPT = at_step(3, signal.SIGINT)


def test_an_interrupted_cell_ends_with_a_checkpoint_and_a_partial_result(
    folder: Path, caplog: pytest.LogCaptureFixture
) -> None:
    result = controller(folder).train([INTERRUPT])
    assert result.steps == {"cls": 3}
    assert result.is_interrupted
    assert Path(result.paths["checkpoint"]).name == "step_3"
    assert re.search(r"step_3.*resume: auto", caplog.text)
    resumed = controller(folder, resume="auto").train()
    assert (resumed.steps, resumed.is_interrupted) == ({"cls": 10}, False)


def test_a_second_training_in_the_same_kernel_is_refused_or_says_that_it_starts_from_scratch(
    folder: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO", "palm")
    first = controller(folder)
    first.train([INTERRUPT])
    with raises(StorageError, "resume: auto", "overwrite: true"):
        first.train()
    anew = controller(folder, overwrite=True).train()
    assert (anew.steps, anew.history[0].step) == ({"cls": 10}, 0)
    assert re.search(r"the earlier run was moved to out\.previous", caplog.text)
