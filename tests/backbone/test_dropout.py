"""Dropout from random bytes: how often, how much, and from which generator."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from palm.backbone.dropout import Dropout, drop_threshold, dropout, dropout_scale


@pytest.mark.parametrize(("probability", "bytes_"), [(0.1, 26), (0.5, 128), (0.001, 1), (0.999, 255)])
def test_the_probability_is_the_nearest_of_256_and_neither_0_nor_1(probability: float, bytes_: int) -> None:
    assert drop_threshold(probability) == bytes_


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32, torch.float64])
def test_as_many_as_announced_are_zero_and_the_others_are_scaled_exactly(dtype: torch.dtype) -> None:
    torch.manual_seed(0)
    dropped = dropout(torch.ones(1000, 1003, dtype=dtype), 0.1)
    # 26 of 256; four standard deviations of a binomial mean over a million draws
    share = (dropped == 0).double().mean().item()
    assert share == pytest.approx(26 / 256, abs=4 * (0.1 * 0.9 / 1003000) ** 0.5)
    assert dropped.unique().tolist() == [0, torch.tensor(256 / 230, dtype=dtype).item()]
    assert dropout_scale(0.1) * (1 - 26 / 256) == 1


def test_rows_and_columns_are_dropped_independently() -> None:
    torch.manual_seed(0)
    zeros = (dropout(torch.ones(512, 512), 0.5) == 0).double()
    for means in (zeros.mean(0), zeros.mean(1)):
        assert means.std() == pytest.approx((0.25 / 512) ** 0.5, rel=0.15)
    assert abs((zeros[1:] * zeros[:-1]).mean() - 0.25) < 0.01
    assert abs((zeros[:, 1:] * zeros[:, :-1]).mean() - 0.25) < 0.01


def test_the_gradient_passes_where_the_values_passed() -> None:
    torch.manual_seed(0)
    values = torch.randn(40, 7, dtype=torch.bfloat16, requires_grad=True)
    dropped = dropout(values, 0.4)
    dropped.sum().backward()
    assert values.grad is not None
    assert torch.equal(values.grad != 0, dropped != 0)
    assert set(values.grad.unique().tolist()) == {0.0, torch.tensor(dropout_scale(0.4)).bfloat16().item()}


def test_torchs_seed_decides_and_every_call_draws_anew() -> None:
    values = torch.ones(100)
    torch.manual_seed(3)
    first, second = dropout(values, 0.3), dropout(values, 0.3)
    torch.manual_seed(3)
    assert torch.equal(dropout(values, 0.3), first)
    assert not torch.equal(first, second)


def test_the_module_is_one_of_torchs_and_acts_only_while_training() -> None:
    module, values = Dropout(0.5), torch.ones(64)
    assert isinstance(module, nn.Dropout)
    assert (module(values) == 0).any()
    assert module.eval()(values) is values
    assert Dropout(0.0)(values) is values
