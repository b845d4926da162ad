"""A SIGKILL inside a stage whose steps train several tasks: the resumed run ends with the same bits."""

from __future__ import annotations

import json
import os
import signal
from pathlib import Path
from typing import Any

import pytest
import torch

from helpers import killed_stage, tiny
from helpers.loaded import run_script
from palm.controller.controller import Controller
from palm.core.saved import load_tensors


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of a run that nobody killed."""
    folder = tiny.write_files(tmp_path_factory.mktemp("stages"))
    Controller(killed_stage.config(folder, "whole"), argv=[]).train()
    return folder


def tensors(out: Path) -> dict[str, dict[str, torch.Tensor]]:
    """What all models, stages and checkpoints hold, by their paths."""
    return {
        file.relative_to(out).as_posix(): load_tensors(file) for file in sorted(out.rglob("*.safetensors"))
    }


def told(out: Path) -> list[dict[str, Any]]:
    files = sorted(out.glob("stages/*/history.jsonl"))
    lines = [json.loads(line) for file in files for line in file.read_text(encoding="utf-8").splitlines()]
    unlike = ("seconds", "time", "memory_bytes")
    same = [line for line in lines if line["event"] != "warning"]  # that a stage begins anew
    return [{name: line[name] for name in line if name not in unlike} for line in same]


@pytest.mark.skipif(os.name == "nt", reason="Windows has no SIGKILL")
@pytest.mark.parametrize(("stage", "step"), [("2-pair", 2), ("2-pair", 7)])
def test_a_killed_stage_continues_to_the_bit(whole: Path, stage: str, step: int) -> None:
    out = f"killed_{stage}_{step}"
    status, output = run_script(Path(killed_stage.__file__), whole, str(whole), out, stage, str(step))
    assert status == -signal.SIGKILL, output
    assert not (whole / out / "stages" / stage / "weights").exists()

    Controller(killed_stage.config(whole, out, resume="auto"), argv=[]).train()
    expected, found = tensors(whole / "whole"), tensors(whole / out)
    assert found.keys() == expected.keys()
    for path, weights in expected.items():
        assert weights.keys() == found[path].keys()
        assert all(torch.equal(value, found[path][name]) for name, value in weights.items()), path
    assert told(whole / out) == told(whole / "whole")
