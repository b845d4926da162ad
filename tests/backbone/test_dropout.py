"""Dropout from random bytes: how often, how much, and from which generator."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from palm.backbone.cpu_kernels import attend_by_groups, draw_mask, dropout, successes
from palm.backbone.packing import Scope, Sequences


@pytest.mark.parametrize("probability", [0.1, 0.001, 0.999])
def test_ten_million_draws_drop_with_the_asked_probability(probability: float) -> None:
    torch.manual_seed(0)
    count = 10**7
    stays = draw_mask(torch.Size([count]), probability, torch.float32)
    dropped = 1 - int(stays.count_nonzero()) / count
    # Four standard errors of a binomial mean; 26 of 256 for 0.1, the nearest byte, is 16 of them away.
    assert dropped == pytest.approx(probability, abs=4 * (probability * (1 - probability) / count) ** 0.5)


def test_attention_drops_with_the_asked_probability() -> None:
    heads, tokens = 4, 100
    sequences = Sequences(torch.arange(0, 51 * tokens, tokens, dtype=torch.int32), tokens)
    parts = torch.zeros(2, 50 * tokens, heads, 1)  # all weights are 1 / tokens
    torch.manual_seed(1)
    gathered = attend_by_groups(*parts, torch.ones(50 * tokens, heads, 1), Scope(sequences, sequences), 0.1)
    dropped, count = 1 - 0.9 * gathered.double().mean().item(), 50 * tokens * tokens * heads
    assert dropped == pytest.approx(0.1, abs=4 * (0.1 * 0.9 / count) ** 0.5)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32, torch.float64])
def test_what_stays_is_divided_by_the_probability_of_staying(dtype: torch.dtype) -> None:
    torch.manual_seed(0)
    expected = [0, torch.tensor(1 / (1 - 0.1), dtype=dtype).item()]
    assert dropout(torch.ones(1000, dtype=dtype), 0.1).unique().tolist() == expected


def test_successes_are_independent_trials() -> None:
    torch.manual_seed(0)
    found = np.stack([np.isin(np.arange(8), successes(8, 0.25)) for _ in range(20_000)])  # [draws, trials]
    assert np.abs(found.mean(0) - 0.25).max() < 4 * (0.25 * 0.75 / 20_000) ** 0.5
    together = np.corrcoef(found.T.astype(float))[~np.eye(8, dtype=bool)]
    assert np.abs(together).max() < 4 / 20_000**0.5
    assert len(successes(100, 0.0)) == 0
    assert len(successes(10**5, 1e-9)) == 0


def test_rows_and_columns_are_dropped_independently() -> None:
    torch.manual_seed(0)
    zeros = (dropout(torch.ones(512, 512), 0.5) == 0).double()
    for means in (zeros.mean(0), zeros.mean(1)):
        assert means.std() == pytest.approx((0.25 / 512) ** 0.5, rel=0.15)
    assert abs((zeros[1:] * zeros[:-1]).mean() - 0.25) < 0.01
    assert abs((zeros[:, 1:] * zeros[:, :-1]).mean() - 0.25) < 0.01


def test_the_gradient_passes_where_the_values_passed() -> None:
    torch.manual_seed(0)
    # Of some versions of torch, `randn` in bfloat16 gives a zero in a hundred values.
    values = torch.randn(40, 7).bfloat16().requires_grad_()
    dropped = dropout(values, 0.4)
    dropped.sum().backward()
    assert values.grad is not None
    assert torch.equal(values.grad != 0, dropped != 0)
    assert set(values.grad.unique().tolist()) == {0.0, torch.tensor(1 / 0.6).bfloat16().item()}
