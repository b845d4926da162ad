"""Activation checkpointing and torch.compile change time and memory, not what is learned."""

from __future__ import annotations

import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import palm
from helpers import tiny
from helpers.components import small, tensors
from palm.backbone import BERT
from palm.controller import Controller
from palm.core.errors import ConfigError
from palm.core.numerics.device import compiler_problems
from palm.core.numerics.precision import Precision, computing
from palm.engine.training.recipe import identity

CPU = torch.device("cpu")


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return tiny.write_files(tmp_path)


def losses(folder: Path, **settings: Any) -> list[float]:
    training = Controller(tiny.config(folder, "cls", "mlm", **settings), argv=[]).training()
    return [step.loss.item() for step in training.steps()]


@pytest.mark.parametrize("precision", ["fp32", "bf16"])
def test_activation_checkpointing_leaves_every_loss_as_it_is_dropout_included(
    folder: Path, precision: str
) -> None:
    plain = losses(folder, precision=precision)
    assert losses(folder, precision=precision, activation_checkpointing=True) == plain


def kept_bytes(backbone: BERT, inputs: dict[str, Tensor]) -> int:
    """Of tensors that are kept for the backward pass, parameters aside."""
    sizes: dict[int, int] = {}
    parameters = {parameter.data_ptr() for parameter in backbone.parameters()}

    def pack(tensor: Tensor) -> Tensor:
        if tensor.data_ptr() not in parameters:
            sizes[tensor.data_ptr()] = tensor.untyped_storage().nbytes()
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
        backbone(inputs)
    return sum(sizes.values())


def test_activation_checkpointing_keeps_less_and_gives_the_same_gradients() -> None:
    one, other = small(BERT).train(), small(BERT).train()
    other.checkpoint_activations()
    inputs = tensors(one.inputs_attr)
    assert kept_bytes(other, inputs) < 0.4 * kept_bytes(one, inputs)
    for backbone in (one, other):
        torch.manual_seed(5)
        backbone(inputs)["encoder_outputs"].square().sum().backward()
    for (name, ours), theirs in zip(one.named_parameters(), other.parameters(), strict=True):
        if ours.grad is not None:
            assert torch.equal(ours.grad, theirs.grad), name


class Table(palm.backbone.Backbone):
    """A backbone without layers."""

    def __init__(self) -> None:
        super().__init__()
        self.inputs_attr, self.outputs_attr = {}, {}
        self.table = nn.Embedding(3, 3)

    def forward(self, inputs: dict[str, Tensor], wanted: Any = None) -> dict[str, Tensor]:
        return {}


def test_a_backbone_that_cannot_checkpoint_says_so() -> None:
    with pytest.raises(ConfigError) as caught:
        Table().checkpoint_activations()
    assert "activation_checkpointing: Table" in str(caught.value)


@pytest.mark.skipif(compiler_problems(CPU) != [], reason="needs a C++ compiler")
def test_compiled_layers_give_the_same_for_batches_of_every_size() -> None:
    still = {"hidden_dropout_prob": 0.0, "attention_probs_dropout_prob": 0.0}
    plain, compiled = BERT(32, 1, 2, 20, 8, **still), BERT(32, 1, 2, 20, 8, **still)
    compiled.load_state_dict(plain.state_dict())
    compiled.compile()
    inputs = tensors(plain.inputs_attr)
    for rows in (8, 5, 3):
        some = {name: value[:rows] for name, value in inputs.items()}
        gradients = []
        for backbone in (plain, compiled):
            backbone.zero_grad()
            outputs = backbone(some)["encoder_outputs"]
            outputs.square().sum().backward()
            gradients.append((outputs, backbone.embeddings.word_table.grad.clone()))
        for ours, theirs in zip(*gradients, strict=True):
            torch.testing.assert_close(ours, theirs, atol=1e-4, rtol=1e-4)
    assert list(compiled.state_dict()) == list(plain.state_dict())


def test_a_missing_compiler_is_told_before_the_first_step(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(shutil, "which", lambda _: None)
    controller = Controller(tiny.config(folder, "cls", compile=True, use_gpu=False), argv=[])
    with pytest.raises(ConfigError) as caught:
        controller.training()
    assert "compile: torch.compile" in str(caught.value)
    assert "g++" in str(caught.value)


class Calls:
    """What goes through a layer as it is compiled: how many tokens."""

    def __init__(self, backbone: BERT) -> None:
        self.tokens: list[int] = []
        for layer in backbone.layers:
            layer._compiled_call_impl = self._called(layer)

    def _called(self, layer: nn.Module) -> Any:
        def call(tokens: Tensor, *others: Any) -> Any:
            self.tokens.append(len(tokens))
            return layer._call_impl(tokens, *others)

        return call


def rows_of_65_tokens() -> dict[str, Tensor]:
    mask = torch.arange(40) < torch.tensor([40, 25])[:, None]
    ids = torch.ones(2, 40, dtype=torch.long)
    return {"token_ids": ids, "position_ids": ids, "segment_ids": ids, "input_mask": mask}


@pytest.mark.parametrize("precision", ["fp32", "bf16"])
@pytest.mark.parametrize(("wanted", "count"), [("encoder_outputs", 3), ("sentence_embedding", 5)])
def test_the_compiler_sees_layers_in_three_parts_which_they_share(
    precision: Precision, wanted: str, count: int
) -> None:
    torch._dynamo.reset()
    parts: list[nn.Module] = []

    def backend(part: torch.fx.GraphModule, _: Any) -> Any:
        parts.append(part)
        return part.forward

    backbone, inputs = BERT(32, 3, 2, 20, 40), rows_of_65_tokens()
    backbone.compile(backend=backend)
    for columns in (40, 30):
        some = {name: value[:, :columns] for name, value in inputs.items()}
        with computing(precision, CPU):
            backbone(some, [wanted])
    # Up to attention, its output layer, and the rest; first tokens alone are picked and asked for apart.
    assert len(parts) == count
    torch._dynamo.reset()


def test_compiled_layers_have_all_batches_as_they_are() -> None:
    backbone, inputs = BERT(32, 3, 2, 20, 40), rows_of_65_tokens()
    backbone.compile()
    calls = Calls(backbone)
    backbone(inputs, ["sentence_embedding"])
    backbone.eval()(inputs)
    assert calls.tokens == [65] * 6


def test_graphs_are_no_longer_a_way_to_compile(folder: Path) -> None:
    with pytest.raises(ConfigError) as caught:
        Controller(tiny.config(folder, "cls", compile="graphs"), argv=[])
    assert "compile: graphs" in str(caught.value)
    assert "compile: True" in str(caught.value)


def test_a_checkpoint_remembers_compile(folder: Path) -> None:
    recipe = Controller(tiny.config(folder, "cls"), argv=["--use_gpu", "False"]).training().recipe
    modes = [identity(replace(recipe, compile=mode))["compile"] for mode in (False, True)]
    assert modes == [False, True]
