"""bf16 follows fp32 closely, keeps the contract's dtypes, and is part of what a run is."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import palm.compat as palm
from helpers import tiny
from helpers.components import small, tensors
from palm.controller.controller import Controller
from palm.core.device import choice_of_cpu, computing, resolved
from palm.core.saved import TensorSpec
from palm.paradigm import HEADS
from palm.train.loop import Training
from palm.train.model import outputs_of

CPU = torch.device("cpu")


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return tiny.write_files(tmp_path)


def training(folder: Path, *tasks: str, **settings: Any) -> Training:
    return Controller(tiny.config(folder, *tasks, **settings), argv=[]).training()


def without_dropout(training: Training) -> Training:
    for part in training.model.modules():
        if hasattr(part, "dropout_prob"):
            part.dropout_prob = 0.0
        if isinstance(part, nn.Dropout):
            part.p = 0.0
    return training


def gradients(folder: Path, task: str, precision: str) -> dict[str, Tensor]:
    run = without_dropout(training(folder, task, precision=precision))
    run.model([task], [run.tasks[0].stream.batch(0)]).sum().backward()
    return {name: p.grad for name, p in run.model.named_parameters() if p.grad is not None}


@pytest.mark.parametrize("task", ["cls", "match", "mlm", "mrc"])
def test_the_gradient_in_bf16_is_within_two_percent_of_that_in_fp32(folder: Path, task: str) -> None:
    exact, rounded = (gradients(folder, task, precision) for precision in ("fp32", "bf16"))
    assert exact.keys() == rounded.keys()
    assert all(gradient.dtype == torch.float32 for gradient in rounded.values())
    error = sum((rounded[name] - exact[name]).square().sum() for name in exact)
    size = sum(gradient.square().sum() for gradient in exact.values())
    assert 0 < (error / size).sqrt() < 0.02


def test_a_resumed_run_in_bf16_repeats_the_uninterrupted_one(folder: Path) -> None:
    settings = {"precision": "bf16", "save_every_n_steps": 7, "use_ema": True, "ema_decay": 0.9}
    Controller(tiny.config(folder, "cls", "mlm", **settings), argv=[]).train()
    model = folder / "out" / "cls" / "infer_model" / "model.safetensors"
    uninterrupted = model.read_bytes()
    model.unlink()
    settings["resume"] = str(folder / "out" / "step_14")
    Controller(tiny.config(folder, "cls", "mlm", **settings), argv=[]).train()
    assert model.read_bytes() == uninterrupted


@pytest.mark.parametrize(
    ("capabilities", "expected"),
    [
        ({"amx_bf16": True, "avx512_bf16": True, "cpu_name": "Intel(R) Xeon(R)"}, "bf16"),
        ({"amx_bf16": False, "avx512_bf16": True, "cpu_name": "AMD EPYC"}, "bf16"),
        ({"amx_bf16": False, "avx512_bf16": True, "cpu_name": "Intel(R) Xeon(R)"}, "fp32"),
        ({"amx_bf16": False, "avx512_bf16": False, "cpu_name": "AMD EPYC"}, "fp32"),
        ({"architecture": "aarch64"}, "fp32"),
    ],
)
def test_auto_follows_from_the_cpu(capabilities: dict[str, Any], expected: str) -> None:
    assert choice_of_cpu(capabilities)[0] == expected


def test_a_run_computes_in_the_precision_of_its_device(folder: Path) -> None:
    run = training(folder, "cls", precision="auto", use_gpu=False)
    assert run.model.precision == resolved("auto", CPU)
    assert resolved("auto", torch.device("meta")) == "fp32"


@pytest.mark.parametrize("name", ["cls", "match", "mlm", "mrc", "seq_label"])
def test_an_output_layer_keeps_its_declared_dtypes_in_bf16(name: str) -> None:
    backbone, head = small(palm.backbone.BERT), small(HEADS[name])
    batch = {**tensors(head.inputs_attr), **tensors(backbone.inputs_attr)}
    exact, rounded = (outputs_of(backbone, head, batch, precision) for precision in ("fp32", "bf16"))
    assert {n: v.dtype for n, v in rounded.items()} == {n: s.dtype for n, s in head.outputs_attr.items()}
    for output, value in rounded.items():
        torch.testing.assert_close(value, exact[output], atol=0.02, rtol=0.02)


class Average(palm.backbone.Backbone):
    """A backbone of torch's modules, as a user writes it."""

    def __init__(self) -> None:
        super().__init__()
        self.inputs_attr = {"token_ids": TensorSpec(("batch", "seq"), torch.long)}
        self.outputs_attr = {"sentence_embedding": TensorSpec(("batch", 8), torch.float)}
        self.table, self.layer = nn.Embedding(20, 8), nn.Linear(8, 8)
        self.seen: list[torch.dtype] = []

    def forward(self, inputs: dict[str, Tensor], wanted: Any = None) -> dict[str, Tensor]:
        mean = self.layer(self.table(inputs["token_ids"]).mean(1))
        self.seen.append(mean.dtype)
        return {"sentence_embedding": mean}


def test_a_backbone_of_ones_own_computes_in_bf16_and_its_features_arrive_as_declared() -> None:
    backbone, head = Average(), palm.head.Classify(3, 8).eval()
    batch = {"token_ids": torch.randint(20, (4, 6))}
    outputs = outputs_of(backbone, head, batch, "bf16")
    assert backbone.seen == [torch.bfloat16]
    assert outputs["logits"].dtype == torch.float32
    with computing("bf16", CPU):
        outputs_of(backbone, head, batch, "fp32")
    assert backbone.seen[-1] == torch.float32
