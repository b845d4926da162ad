"""Activation checkpointing changes time and memory, not what is learned."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from helpers import tiny
from helpers.components import small, tensors
from palm.backbone import BERT


def losses(folder: Path, **settings: Any) -> list[float]:
    training = tiny.controller(folder, "cls", "mlm", **settings).training()
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
