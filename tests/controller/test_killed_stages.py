"""A SIGKILL inside a stage whose steps train several tasks: the resumed run ends with the same bits."""

from __future__ import annotations

import os
import signal
from pathlib import Path
from typing import Any

import pytest

from helpers import killed_stage, tiny
from helpers.callbacks import timeless
from helpers.equal import differing, tensors_in
from helpers.loaded import run_script
from palm.controller.controller import Controller


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of a run that nobody killed."""
    folder = tiny.write_files(tmp_path_factory.mktemp("stages"))
    Controller(killed_stage.config(folder, "whole"), argv=[]).train()
    return folder


def told(out: Path) -> list[dict[str, Any]]:
    """The history, but for the warning that a stage begins anew."""
    return [line for line in timeless(out) if line["event"] != "warning"]


@pytest.mark.skipif(os.name == "nt", reason="Windows has no SIGKILL")
@pytest.mark.parametrize(("stage", "step"), [("2-pair", 2), ("2-pair", 7)])
def test_a_killed_stage_continues_to_the_bit(whole: Path, stage: str, step: int) -> None:
    out = f"killed_{stage}_{step}"
    status, output = run_script(Path(killed_stage.__file__), whole, str(whole), out, stage, str(step))
    assert status == -signal.SIGKILL, output
    assert not (whole / out / "stages" / stage / "weights").exists()

    Controller(killed_stage.config(whole, out, resume="auto"), argv=[]).train()
    assert differing(tensors_in(whole / "whole"), tensors_in(whole / out)) == []
    assert told(whole / out) == told(whole / "whole")
