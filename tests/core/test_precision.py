"""bf16 follows fp32 closely, keeps the contract's dtypes, and is part of what a run is."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Iterator
from itertools import islice
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import palm
from helpers import tiny
from helpers.components import small, tensors
from palm.controller.controller import Controller
from palm.core.errors import ConfigError, StorageError
from palm.core.numerics import precision as precision_module
from palm.core.numerics.precision import choice, choice_of_cpu, computing, measured_speedup, resolved
from palm.core.tensor_specs import TensorSpec
from palm.paradigm import HEADS, Classify
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


@pytest.mark.parametrize("use_ema", [False, True])
def test_a_resumed_run_in_bf16_repeats_the_uninterrupted_one(folder: Path, use_ema: bool) -> None:
    averages = {"use_ema": True, "ema_decay": 0.9} if use_ema else {}
    settings = {"precision": "bf16", "save_every_n_steps": 7, **averages}
    Controller(tiny.config(folder, "cls", "mlm", **settings), argv=[]).train()
    model = folder / "out" / "cls" / "infer_model" / "model.safetensors"
    uninterrupted = model.read_bytes()
    model.unlink()
    settings["resume"] = str(folder / "out" / "step_14")
    Controller(tiny.config(folder, "cls", "mlm", **settings), argv=[]).train()
    assert model.read_bytes() == uninterrupted


def test_a_checkpoint_of_another_precision_is_refused(folder: Path) -> None:
    Controller(tiny.config(folder, "cls", precision="bf16", save_every_n_steps=8), argv=[]).train()
    other = tiny.config(folder, "cls", precision="fp32", resume=str(folder / "out" / "step_8"))
    with pytest.raises(StorageError, match=r"precision: 'bf16' .*'fp32'"):
        Controller(other, argv=[]).train()


def test_auto_is_bf16_where_the_hardware_has_it(folder: Path) -> None:
    fast = resolved("auto", CPU)
    assert fast == "bf16" or not torch.cpu._is_amx_tile_supported()
    assert resolved("auto", torch.device("meta")) == "fp32"
    config = tiny.config(folder, "cls", use_gpu=False)
    del config["precision"]
    run = Controller(config, argv=[]).training()
    assert run.recipe.chosen is not None
    assert run.model.precision == fast or run.recipe.chosen.is_timed


def test_auto_decides_by_flags_and_measures_only_where_they_do_not_tell() -> None:
    never: Callable[[], float] = lambda: pytest.fail("measured")  # noqa: E731
    assert choice_of_cpu({"amx_bf16", "avx512_bf16"}, never).precision == "bf16"
    assert choice_of_cpu(set(), never).precision == "fp32"
    for speedup, precision in ((2.2, "bf16"), (0.6, "fp32")):
        chosen = choice_of_cpu({"avx512_bf16"}, lambda speedup=speedup: speedup)
        assert chosen.precision == precision
        assert str(speedup) in chosen.reason
    assert choice("fp32", CPU).precision == "fp32"


def test_time_that_other_programs_take_does_not_count() -> None:
    factor = {"fp32": 3, "bf16": 1}

    def compute(precision: str) -> None:
        time.sleep(0.02 if precision == "bf16" else 0)
        until = time.process_time() + 0.01 * factor[precision]
        while time.process_time() < until:
            pass

    assert measured_speedup(compute, repeats=2) == pytest.approx(3, rel=0.2)


def test_short_passes_are_timed_more_often() -> None:
    """One interruption of a pass of a few milliseconds must not decide the precision of a run."""
    calls: Counter[str] = Counter()

    def compute(precision: str) -> None:
        calls[precision] += 1
        interrupted = 0.01 if calls[precision] in (2, 3) and precision == "fp32" else 0
        until = time.process_time() + 0.002 + interrupted
        while time.process_time() < until:
            pass

    assert measured_speedup(compute, repeats=2) == pytest.approx(1, rel=0.2)
    assert calls["fp32"] == calls["bf16"] > 5


@pytest.fixture
def timed(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """A CPU where `auto` has to be timed: AVX512_BF16 and no AMX."""
    monkeypatch.setattr(torch.cpu, "get_capabilities", lambda: {"avx512_bf16": True})
    monkeypatch.setattr(torch.cpu, "_is_amx_tile_supported", lambda: False)
    precision_module._flags.cache_clear()
    yield
    precision_module._flags.cache_clear()


@pytest.mark.usefixtures("timed")
def test_auto_times_a_pass_over_the_rows_of_the_run_and_changes_no_loss(folder: Path) -> None:
    run = training(folder, "cls", "mlm", precision="auto")
    chosen = run.recipe.chosen
    assert chosen is not None
    assert chosen.is_timed
    assert "4 rows of cls" in chosen.reason
    assert all(parameter.grad is None for parameter in run.model.parameters())
    other = training(folder, "cls", "mlm", precision=chosen.precision)
    assert losses(run, 5) == losses(other, 5)


@pytest.mark.usefixtures("timed")
def test_a_timed_pass_is_not_training_for_a_head(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Rank 0 alone times a pass; in training, a loss such as that of `embedding` waits for the others."""
    modes = []
    original = Classify.loss

    def loss(self: Classify, outputs: Any, targets: Any) -> Tensor:
        modes.append(self.training)
        return original(self, outputs, targets)

    monkeypatch.setattr(Classify, "loss", loss)
    run = training(folder, "cls", precision="auto")
    assert len(modes) >= 6  # three in each precision
    assert not any(modes)
    assert run.model.head("cls").training


@pytest.mark.usefixtures("timed")
@pytest.mark.parametrize("saved", ["fp32", "bf16"])
def test_auto_that_was_timed_continues_in_the_precision_of_the_checkpoint(folder: Path, saved: str) -> None:
    settings = {"precision": saved, "save_every_n_steps": 7}
    Controller(tiny.config(folder, "cls", **settings), argv=[]).train()
    model = folder / "out" / "cls" / "infer_model" / "model.safetensors"
    uninterrupted = model.read_bytes()
    model.unlink()
    settings |= {"precision": "auto", "resume": str(folder / "out" / "step_7")}
    Controller(tiny.config(folder, "cls", **settings), argv=[]).train()
    assert model.read_bytes() == uninterrupted


def test_an_unknown_precision_is_reported_wherever_it_is_given(folder: Path) -> None:
    with pytest.raises(ConfigError, match=r"precision .*'auto', 'fp32', 'bf16', not 'fp16'"):
        Controller(tiny.config(folder, "cls", precision="fp16"), argv=[])
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
    for output, value in rounded.items():
        torch.testing.assert_close(value, exact[output], atol=0.02, rtol=0.02)


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
    Controller(tiny.config(folder, "match", num_epochs=10), argv=[]).train()
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
