"""bf16 follows fp32 closely, keeps the contract's dtypes, and is part of what a run is."""

from __future__ import annotations

from itertools import islice
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import palm.compat as palm
from helpers import tiny
from helpers.components import small, tensors
from palm.core.device import choice_of_cpu, computing, resolved
from palm.core.errors import ConfigError
from palm.core.saved import TensorSpec
from palm.paradigm import HEADS
from palm.train.loop import Training
from palm.train.model import outputs_of

CPU = torch.device("cpu")


def training(folder: Path, *tasks: str, **settings: Any) -> Training:
    return tiny.controller(folder, *tasks, **settings).training()


def without_dropout(training: Training) -> Training:
    for part in training.model.modules():
        if hasattr(part, "dropout_prob"):
            part.dropout_prob = 0.0
        if isinstance(part, nn.Dropout):
            part.p = 0.0
    return training


def losses(training: Training, count: int | None = None) -> list[float]:
    return [step.loss.item() for step in islice(training.steps(), count)]


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


def test_the_losses_in_bf16_follow_those_in_fp32(folder: Path) -> None:
    settings = {"num_epochs": 10, "learning_rate": 5e-4}
    runs = (training(folder, "cls", "mlm", precision=p, **settings) for p in ("fp32", "bf16"))
    exact, rounded = (torch.tensor(losses(without_dropout(run), 40)) for run in runs)
    assert exact[-5:].mean() < exact[:5].mean() - 0.1
    assert 0 < (exact - rounded).abs().max() < 2e-3


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


def test_an_unknown_precision_is_reported_wherever_it_is_given(folder: Path) -> None:
    with pytest.raises(ConfigError, match=r"precision .*'auto', 'fp32', 'bf16', not 'fp16'"):
        tiny.controller(folder, "cls", precision="fp16")
    with pytest.raises(ConfigError, match=r"precision: 'half' .*auto, fp32, bf16"):
        palm.Trainer("t", precision="half")
    with pytest.raises(ConfigError, match="'half'"):
        palm.MultiHeadTrainer([palm.Trainer("t")], precision="half")


@pytest.mark.parametrize("name", ["cls", "match", "mlm", "mrc", "seq_label"])
def test_an_output_layer_keeps_its_declared_dtypes_in_bf16(name: str) -> None:
    backbone, head = small(palm.backbone.BERT), small(HEADS[name])
    batch = {**tensors(head.inputs_attr), **tensors(backbone.inputs_attr)}
    exact, rounded = (outputs_of(backbone, head, batch, precision) for precision in ("fp32", "bf16"))
    assert {n: v.dtype for n, v in rounded.items()} == {n: s.dtype for n, s in head.outputs_attr.items()}
    torch.testing.assert_close(rounded, exact, atol=0.02, rtol=0.02)


def test_an_encoder_by_itself_computes_in_fp32_and_within_autocast_in_its_dtype() -> None:
    backbone = small(palm.backbone.BERT)
    inputs = tensors(backbone.inputs_attr)
    exact = backbone(inputs)
    assert {value.dtype for value in exact.values()} == {torch.float32}
    with torch.autocast("cpu", torch.bfloat16):
        rounded = backbone(inputs)
    assert rounded["encoder_outputs"].dtype == torch.bfloat16
    assert rounded["sentence_embedding"].dtype == torch.float32
    torch.testing.assert_close(
        rounded["encoder_outputs"].float(), exact["encoder_outputs"], atol=0.05, rtol=0
    )


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


def test_a_saved_model_predicts_in_either_precision(folder: Path) -> None:
    tiny.controller(folder, "match", num_epochs=10).train()
    where = folder / "out" / "match" / "infer_model"
    pairs = [
        ("who owns the door", "anna has a old red door ."),
        ("who owns the sun", "bert has a new lamp ."),
    ]
    exact, rounded = (
        [record["probs"] for record in palm.load_model(where, precision=precision).predict(pairs)]
        for precision in ("fp32", "bf16")
    )
    assert exact != rounded
    torch.testing.assert_close(torch.tensor(rounded), torch.tensor(exact), atol=0.02, rtol=0)
    assert palm.load_model(where).precision == "auto"
