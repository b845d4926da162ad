"""Signals end a run with a checkpoint, and leave the handlers of a host program alone."""

from __future__ import annotations

import re
import signal
import sys
from pathlib import Path
from typing import Any

import pytest

import palm
from helpers import tiny
from helpers.loaded import run_script
from palm.controller.controller import Controller


def controller(folder: Path, *tasks: str, **settings: Any) -> Controller:
    return tiny.controller(folder, *tasks, **{"overwrite": False, **settings})


def models(folder: Path) -> dict[str, bytes]:
    return {
        path.parent.parent.name: path.read_bytes() for path in folder.glob("*/infer_model/model.safetensors")
    }


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


def program(folder: Path, *words: str) -> tuple[int | None, str]:
    """The exit status of a program that trains in a folder, and what it wrote."""
    (folder / "run.py").write_text(PROGRAM, encoding="utf-8")
    tiny.write_config(folder, tiny.config(folder, "cls", num_epochs=1, overwrite=False))
    return run_script(Path("run.py"), folder, *words)


@pytest.mark.skipif(sys.platform == "win32", reason="signals of POSIX")
@pytest.mark.parametrize("name", ["SIGTERM", "SIGUSR1"])
def test_a_signal_ends_a_run_with_a_checkpoint_and_the_command_to_go_on(folder: Path, name: str) -> None:
    status, output = program(folder, name, "once")
    assert status == 128 + getattr(signal, name), output
    assert re.search(rf"{name}: .* 3; ", output)
    assert "step_3" in output
    assert "--resume auto" in output
    assert program(folder, name, "once", "--resume", "auto")[0] == 0
    resumed = models(folder / "out")
    controller(folder, "cls", num_epochs=1, save_path=str(folder / "whole")).train()
    assert resumed == models(folder / "whole")


@pytest.mark.skipif(sys.platform == "win32", reason="signals of POSIX")
def test_a_second_signal_ends_at_once(folder: Path) -> None:
    status, _ = program(folder, "SIGTERM", "twice")
    assert status == -signal.SIGTERM
    assert not list((folder / "out").glob("step_*"))


def test_a_host_with_handlers_of_its_own_keeps_them(folder: Path) -> None:
    before = signal.getsignal(signal.SIGTERM)
    seen = []

    controller(folder, "cls", num_epochs=0.5).train([lambda _: seen.append(signal.getsignal(signal.SIGTERM))])
    assert set(seen) == {before}
    assert palm.load_model(folder / "out" / "cls" / "infer_model").task == "cls"
