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

import palm.cli
import palm.config
from helpers import tiny
from helpers.messages import raises
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
def test_open_files_that_are_used_up_have_a_remedy(tmp_path: Path) -> None:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    opened = len(list(Path("/proc/self/fd").iterdir()))
    resource.setrlimit(resource.RLIMIT_NOFILE, (opened + 8, hard))
    files = []
    try:
        with pytest.raises(ResourceError, match="ulimit -n"), explain_limits():
            files.extend((tmp_path / str(k)).open("w") for k in range(99))
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
        for file in files:
            file.close()


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


def test_the_memory_of_a_gpu_has_a_remedy() -> None:
    with pytest.raises(ResourceError, match="activation_checkpointing"), explain_limits():
        raise torch.cuda.OutOfMemoryError("CUDA out of memory. Tried to allocate 20.00 MiB.\nGPU 0 has")


@pytest.mark.parametrize("command", ["inspect", "report"])
def test_a_path_that_is_too_long_has_a_remedy(command: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert palm.cli.main([command, "9" * 5000]) == 2
    assert f"error: {'9' * 80}… is too long" in capsys.readouterr().err


def test_a_task_whose_name_is_too_long_for_a_file_has_a_remedy() -> None:
    with pytest.raises(ResourceError, match=r"x{10}… is too long"):
        palm.config.read_config({"task_instance": "x" * 5000}, argv=[])


def test_a_working_directory_that_was_removed_has_a_remedy(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "gone").mkdir()
    monkeypatch.chdir(tmp_path / "gone")
    (tmp_path / "gone").rmdir()
    assert palm.cli.main(["check", "config.yaml"]) == 2
    assert "working directory" in capsys.readouterr().err


@pytest.mark.parametrize("setting", ["train_file", "save_path"])
def test_a_name_that_is_not_utf_8_is_an_error_with_its_place(tmp_path: Path, setting: str) -> None:
    named = os.fsdecode(b"\xff.tsv")
    settings = tiny.config(tiny.write_files(tmp_path), "cls", max_steps=1, num_hidden_layers=1)
    with suppress(OSError):  # not every file system allows such a name
        shutil.copy(tmp_path / "cls.tsv", tmp_path / named)
    part = settings["tasks"]["cls"] if setting == "train_file" else settings
    part[setting] = str(tmp_path / named if setting == "train_file" else tmp_path / "out" / named)
    with raises(PalmError, r"\udcff.tsv"):
        Controller(settings, argv=[]).train()


def test_other_errors_pass_as_they_are(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError), explain_limits():
        (tmp_path / "none").open()
