"""Predictions with weights that are kept in bfloat16 have the bits of those that cast them at every call."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from helpers import saved
from helpers.components import encoder_inputs
from palm import load_model
from palm.backbone import BERT
from palm.core.layers import WeightCache, init_weights, skip_init
from palm.paradigm import SequenceLabel
from palm.predict.inference import InferenceModel

TEXTS = ["red apple", "blue boat and a green car", "apple"]


@pytest.fixture
def model(tmp_path: Path) -> InferenceModel:
    loaded = load_model(saved.model(tmp_path), precision="bf16")
    torch.nn.init.normal_(loaded.head.out.weight)
    return loaded


def fresh(model: InferenceModel) -> list[dict[str, Any]]:
    """What the model's parameters predict, of somebody who has kept nothing."""
    parts = (model.reader, model.backbone, model.head)
    return InferenceModel(model.task, *parts, precision="bf16").predict(TEXTS)


@torch.inference_mode()
def test_every_product_has_the_bits_of_one_that_keeps_nothing() -> None:
    torch.manual_seed(0)
    encoder = BERT(64, 2, 4, 50, 64).eval()
    kept = WeightCache()
    for rows, seq in ((1, 1), (1, 14), (3, 40)):
        batch = encoder_inputs(torch.randint(50, (rows, seq)))
        with torch.autocast("cpu", torch.bfloat16):
            plain = encoder(batch)
            with kept.active():
                again = encoder(batch)
        assert all(torch.equal(plain[name], again[name]) for name in plain)


def test_weights_that_were_changed_are_not_taken_from_before(model: InferenceModel) -> None:
    first = model.predict(TEXTS)
    assert model.predict(TEXTS) == first == fresh(model)
    # The fused kernel of AdamW does not count as writing to a parameter.
    optimizer = torch.optim.AdamW(model.backbone.parameters(), lr=0.1, fused=True)
    for parameter in model.backbone.parameters():
        parameter.grad = torch.ones_like(parameter)
    optimizer.step()
    second = model.predict(TEXTS)
    assert second == fresh(model) != first
    with torch.no_grad():
        model.backbone.layers[0].ffn.inner.weight.mul_(-3)
    third = model.predict(TEXTS)
    assert third == fresh(model) != second
    model.backbone.layers[0].ffn.inner.weight.data = torch.zeros(4, 4)
    assert model.predict(TEXTS) == fresh(model) != third


# Modules that will be filled do not draw their parameters first, and compute everything else.


class Mixed(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.out = nn.Linear(3, 5)
        self.table = nn.Embedding(4, 3, padding_idx=0)
        self.norm = nn.LayerNorm(3)
        self.register_buffer("angles", torch.arange(3.0).mul_(2).add_(1), persistent=False)
        self.drawn = nn.init.uniform_(torch.empty(2), 3.0, 4.0)
        init_weights(self, 0.02)


def test_buffers_are_computed_and_the_generator_stays_where_parameters_alone_are_drawn() -> None:
    torch.manual_seed(0)
    before = torch.random.get_rng_state()
    with skip_init():
        nn.Linear(3, 5)
        nn.Embedding(4, 3)
        BERT(16, 1, 2, 20, 8)
        SequenceLabel(3, 16, use_crf=True)
        assert nn.init.trunc_normal_(nn.Linear(3, 5).weight, std=0.02).tolist() == [[0.0] * 3] * 5
    assert torch.equal(torch.random.get_rng_state(), before)
    with skip_init():
        mixed = Mixed()
    assert mixed.angles.tolist() == [1.0, 3.0, 5.0]
    assert 3.0 <= mixed.drawn.min().item() <= 4.0
    assert nn.Linear(2, 2).weight.abs().max().item() <= math.sqrt(1 / 2)  # outside all is as ever


def test_loading_a_model_draws_no_number_and_gives_its_weights(tmp_path: Path) -> None:
    folder = saved.model(tmp_path)
    state = torch.random.get_rng_state()
    one, other = load_model(folder), load_model(folder)
    assert torch.equal(torch.random.get_rng_state(), state)
    pairs = zip(one.backbone.parameters(), other.backbone.parameters(), strict=True)
    assert all(torch.equal(*pair) and torch.isfinite(pair[0]).all() for pair in pairs)
