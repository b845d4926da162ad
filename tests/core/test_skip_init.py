"""Modules that will be filled do not draw their parameters first, and compute everything else."""

from __future__ import annotations

import math
from pathlib import Path

import torch
from torch import nn

from helpers import saved
from palm import load_model
from palm.backbone import BERT
from palm.core.layers import init_weights, skip_init
from palm.paradigm import SequenceLabel


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
