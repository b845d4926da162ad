"""Moving averages of parameters: their numbers, and that they leave no trace when put aside."""

from __future__ import annotations

import pytest
import torch
from torch import nn
from torch.testing import assert_close

from helpers.shared import SHARED
from helpers.training_golden import assert_whole, differences, tiny_model, training
from palm.train.train_step import ExponentialMovingAverage


def weights(*values: float) -> nn.Linear:
    layer = nn.Linear(len(values), 1, bias=False)
    layer.weight.data = torch.tensor([values])
    return layer


def test_averages_are_what_the_original_would_have_applied() -> None:
    model = tiny_model()
    averages = ExponentialMovingAverage(model.named_parameters(), decay=0.9)
    for _ in training(model, "ema", weight_decay=0.1, hat=True):
        averages.update()
    with averages.applied():
        assert max(differences(model, "ema/ema_applied20").values()) < 2e-6
        if SHARED.is_dir():
            assert_whole(model, "ema", "ema_applied20", 4e-5)
    assert max(differences(model, "warmup/param20").values()) < 2e-6


def test_the_average_is_unbiased_from_the_first_step() -> None:
    layer = weights(0.0)
    averages = ExponentialMovingAverage(layer.named_parameters(), decay=0.5)
    seen = []
    for value in (8.0, 2.0, 1.0):
        layer.weight.data.fill_(value)
        averages.update()
        seen.append(averages.average["weight"].item())
    # (8), (8/2 + 2) / (1/2 + 1), (8/4 + 2/2 + 1) / (1/4 + 1/2 + 1)
    assert seen == [8.0, 4.0, pytest.approx(4 / 1.75)]


def stop_within(averages: ExponentialMovingAverage, layer: nn.Linear) -> None:
    with averages.applied():
        assert_close(layer.weight.detach(), torch.tensor([[0.1, 0.2]]))
        raise KeyError("stop")


def test_the_models_own_values_return_even_after_an_error() -> None:
    layer = weights(0.1, 0.2)
    averages = ExponentialMovingAverage(layer.named_parameters(), decay=0.9)
    layer.weight.data.copy_(torch.tensor([[1 / 3, 1e-30]]))
    own = layer.weight.detach().clone()

    with pytest.raises(KeyError, match="stop"):
        stop_within(averages, layer)
    assert torch.equal(layer.weight, own)
    assert layer.weight.requires_grad


def test_where_the_device_refuses_a_step_the_averages_stay() -> None:
    layer = weights(8.0)
    averages = ExponentialMovingAverage(layer.named_parameters(), decay=0.5)
    averages.update(torch.tensor(0.0))
    layer.weight.data.fill_(2.0)
    averages.update(torch.tensor(1.0))
    assert averages.average["weight"].item() == 8.0
    averages.num_updates = 1
    averages.update(torch.tensor(0.0))
    assert averages.average["weight"].item() == pytest.approx(8 + (2 - 8) * 0.5 / 0.75)
