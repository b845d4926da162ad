"""Packed attention on a GPU, by its definition; the same on a CPU, so that the test is known to work."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch

import palm
from helpers import tiny
from helpers.attention_cases import by_definition, case
from helpers.loaded import run_script
from palm.backbone.attention import attend
from palm.backbone.packing import Scope, Sequences
from palm.cli import main

GPU = pytest.param("cuda", marks=pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA GPU"))


@pytest.mark.parametrize("device", ["cpu", GPU])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("dropout_prob", [0.0, 0.1])
@pytest.mark.parametrize("window", [None, 3])
@pytest.mark.parametrize("first_only", [False, True])
def test_attention_is_what_its_definition_says(
    device: str, dtype: torch.dtype, dropout_prob: float, window: int | None, first_only: bool
) -> None:
    *parts, scope = case(first_only=first_only, dtype=dtype, window=window)
    exact = by_definition(*(part.double() for part in parts), scope)
    rows = {s: Sequences(s.offsets.to(device), s.longest) for s in (scope.queries, scope.keys)}
    there = Scope(rows[scope.queries], rows[scope.keys], window)
    on_device = [part.to(device) for part in parts]
    draws = [attend(*on_device, there, dropout_prob).cpu() for _ in range(200 if dropout_prob else 1)]
    mean = torch.stack(draws).double().mean(0)
    torch.testing.assert_close(mean, exact, atol=0.2 if dropout_prob else 0.02, rtol=0.02)


# Several GPUs train as one does; the same on a CPU, so that the test is known to work.


GPUS = pytest.param(
    "cuda", marks=pytest.mark.skipif(torch.cuda.device_count() < 2, reason="needs two CUDA GPUs")
)


def losses_of(folder: Path, device: str, ranks: int) -> list[float]:
    """Train on so many devices, 8 rows a step on all together, without dropout."""
    out = folder / f"out-{ranks}"
    devices = {"device": device, "num_devices": ranks, "batch_size": 8 // ranks, "save_path": str(out)}
    steps = {"dropout_prob": 0.0, "max_steps": 8, "print_every_n_steps": 1}
    given = tiny.config(folder, "cls", "mlm", **devices, **steps)
    file = folder / "config.yaml"
    file.write_text(json.dumps(given), encoding="utf-8")
    if ranks == 1:
        assert main(["train", str(file)]) == 0
    else:
        status, output = run_script(Path(palm.__file__).with_name("__main__.py"), folder, "train", str(file))
        assert status == 0, output
    lines = map(json.loads, (out / "history.jsonl").read_text("utf-8").splitlines())
    return [line["loss"] for line in lines if line["event"] == "step"]


@pytest.mark.parametrize("device", ["cpu", GPUS])
def test_two_ranks_lose_what_one_does(device: str, folder: Path) -> None:
    still = {"hidden_dropout_prob": 0.0, "attention_probs_dropout_prob": 0.0}
    (folder / "backbone.json").write_text(json.dumps({**tiny.BACKBONE, **still}), encoding="utf-8")
    one = losses_of(folder, device, 1)
    assert len(one) == 8
    assert losses_of(folder, device, 2) == pytest.approx(one, rel=1e-4)
