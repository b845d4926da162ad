"""What the system does not give, in palm's words."""

from __future__ import annotations

import os
import resource
import shutil
import subprocess
import sys
from contextlib import suppress
from pathlib import Path

import pytest
import torch

from helpers import tiny
from palm.controller.controller import Controller
from palm.core.cache import explain_limits
from palm.core.errors import PalmError, ResourceError
from palm.core.process import START

HUGE = 1 << 55


@pytest.mark.parametrize("take", [lambda: bytearray(HUGE), lambda: torch.empty(HUGE)])
def test_memory_that_is_not_there_has_a_remedy(take: object) -> None:
    with pytest.raises(ResourceError, match="batch_size"), explain_limits():
        take()  # type: ignore[operator]


@pytest.mark.skipif(sys.platform != "linux", reason="the limit is set as Linux does it")
def test_a_command_for_which_there_is_no_memory_says_so(tmp_path: Path) -> None:
    """PyTorch's library alone is larger; `benchmarks/faults/limits.py` does this with every command."""
    limit = (250 << 20, 250 << 20)
    done = subprocess.run(
        [*START, "predict", "--model", str(tmp_path), "--input", "none", "--output", str(tmp_path / "new")],
        preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_AS, limit),
        capture_output=True,
        text=True,
        check=False,
    )
    assert (done.returncode, "Traceback" in done.stderr) == (2, False), done.stderr
    assert "ulimit -v" in done.stderr
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("setting", ["train_file", "save_path"])
def test_a_name_that_is_not_utf_8_is_an_error_with_its_place(tmp_path: Path, setting: str) -> None:
    named = os.fsdecode(b"\xff.tsv")
    settings = tiny.config(tiny.write_files(tmp_path), "cls", max_steps=1, num_hidden_layers=1)
    with suppress(OSError):  # not every file system allows such a name
        shutil.copy(tmp_path / "cls.tsv", tmp_path / named)
    part = settings["tasks"]["cls"] if setting == "train_file" else settings
    part[setting] = str(tmp_path / named if setting == "train_file" else tmp_path / "out" / named)
    with pytest.raises(PalmError) as caught:
        Controller(settings, argv=[]).train()
    assert r"\udcff.tsv" in str(caught.value)
