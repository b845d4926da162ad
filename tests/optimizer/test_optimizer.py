"""The optimizer against the original's recorded training, and by hand."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import nn
from torch.testing import assert_close

from helpers.shared import needs_shared
from helpers.training_golden import RECORDED, SMALL, assert_whole, differences, tiny_model, training
from palm.compat.lr_sched import TriangularSchedualer
from palm.compat.optimizer import Adam
from palm.core.errors import ConfigError
from palm.optimizer import OPTIMIZERS, AdamW, AdamWDL, Lamb, clip
from palm.pretrained.names import from_ours

RUNS = [
    ("nowarmup", 0.1, 1.0),
    ("nowarmup_wd0", 0.0, 1.0),
    ("nowarmup_smallgrad", 0.1, SMALL),
    ("warmup", 0.1, 1.0),
]


@pytest.mark.parametrize(("run", "weight_decay", "scale"), RUNS)
def test_twenty_steps_follow_the_original(run: str, weight_decay: float, scale: float) -> None:
    model = tiny_model(scale)
    for number, (loss, norm) in enumerate(training(model, run, weight_decay, hat=True), start=1):
        assert loss == pytest.approx(RECORDED[f"{run}/loss"][number - 1], abs=3e-6)
        assert norm == pytest.approx(RECORDED[f"{run}/norm"][number - 1], rel=3e-6)
        if number in (1, 2, 5, 10, 20):
            assert max(differences(model, f"{run}/param{number}").values()) < 2e-6


# The bounds are some one and a half times the differences in docs/optimization.md.
WHOLE = [
    ("nowarmup", 0.1, 1.0, 6e-6, 4e-5),
    ("nowarmup_wd0", 0.0, 1.0, 6e-6, 4e-5),
    ("nowarmup_smallgrad", 0.1, SMALL, 6e-6, 4e-5),
    ("warmup", 0.1, 1.0, 6e-6, 4e-5),
]


@needs_shared
@pytest.mark.parametrize(("run", "weight_decay", "scale", "at_first", "at_last"), WHOLE)
def test_every_number_of_every_tensor_follows_the_original(
    run: str, weight_decay: float, scale: float, at_first: float, at_last: float
) -> None:
    model = tiny_model(scale)
    for number, _ in enumerate(training(model, run, weight_decay, hat=True), start=1):
        if number in (1, 20):
            bound = at_first if number == 1 else at_last
            assert_whole(model, run, f"param{number}", bound)


def test_losses_under_noam_follow_the_original() -> None:
    losses = [loss for loss, _ in training(tiny_model(), "noam", 0.1, hat=True)]
    np.testing.assert_allclose(losses, RECORDED["noam/loss"], rtol=0, atol=3e-6)


def test_epsilon_in_torchs_place_differs_where_gradients_are_tiny() -> None:
    model = tiny_model(SMALL)
    steps = training(model, "nowarmup_smallgrad", 0.1, hat=False)
    next(steps)
    assert 5e-4 < max(differences(model, "nowarmup_smallgrad/param1").values()) < 1e-3
    losses = [loss for loss, _ in steps]
    np.testing.assert_allclose(losses, RECORDED["nowarmup_smallgrad/loss"][1:], rtol=0, atol=1e-4)


def test_what_decays_is_what_decayed_in_the_original() -> None:
    model = tiny_model()
    optimizer = AdamW(1e-3, weight_decay=0.1).build(model.named_parameters())
    decayed, spared = optimizer.param_groups
    assert (decayed["weight_decay"], spared["weight_decay"]) == (0.1, 0.0)

    backbone = model["backbone"].state_dict()
    ours = {name.removeprefix("backbone."): name for name in decayed["param_names"]}
    theirs = from_ours({name: backbone[name] for name in ours if name in backbone}, "paddlepalm")
    assert {*theirs, "t/cls_out_w"} == set(RECORDED["decayed"])
    assert set(ours) - set(backbone) == {"head.out.weight"}


@pytest.mark.parametrize("cls", [AdamW, AdamWDL, Lamb])
def test_a_parameter_without_gradient_stays_even_with_momentum_and_decay(
    cls: type[AdamW | AdamWDL | Lamb],
) -> None:
    drawn, other = nn.Parameter(torch.ones(2, 2)), nn.Parameter(torch.ones(2, 2))
    optimizer = cls(learning_rate=0.1, weight_decay=0.5).build([("drawn", drawn), ("other", other)])
    for parameter in (drawn, other):
        parameter.grad = torch.ones(2, 2)
    optimizer.step()
    before = other.detach().clone()

    other.grad = None
    optimizer.step()
    assert torch.equal(other, before)
    assert not torch.equal(drawn, before)
    assert [int(optimizer.state[p]["step"]) for p in (drawn, other)] == [2, 1]


def test_gradients_are_clipped_together() -> None:
    a, b, unused = (nn.Parameter(torch.zeros(1)) for _ in range(3))
    a.grad, b.grad = torch.tensor([3.0]), torch.tensor([4.0])
    assert clip([a, b, unused], 1.0).item() == 5.0
    assert_close(torch.cat([a.grad, b.grad]), torch.tensor([0.6, 0.8]))


def test_no_moment_stays_denormal_and_no_parameter_notices() -> None:
    ours, plain = (nn.Parameter(torch.linspace(-1, 1, 6).reshape(3, 2)) for _ in range(2))
    optimizer = AdamW(learning_rate=0.01, weight_decay=0.1).build([("table", ours)])
    without = torch.optim.AdamW([plain], lr=0.01, weight_decay=0.1, fused=True)
    generator = torch.Generator().manual_seed(0)
    for step in range(1000):
        gradient = torch.randn(3, 2, generator=generator)
        gradient[0] *= step == 0  # a word that occurs once
        ours.grad, plain.grad = gradient, gradient.clone()
        optimizer.step()
        without.step()

    assert_close(without.state[plain]["exp_avg"][0].abs(), torch.full((2,), 5.6e-45), rtol=0, atol=0)
    assert torch.equal(optimizer.state[ours]["exp_avg"][0], torch.zeros(2))
    assert torch.equal(ours, plain)


def test_everything_wrong_is_reported_at_once() -> None:
    with pytest.raises(ConfigError) as report:
        AdamW(0, weight_decay=-1, grad_clip=0, beta1=1, beta2=-0.5, epsilon=0, grad_clip_type="all")  # type: ignore[arg-type]
    assert [line.split(" should be ")[0] for line in report.value.problems] == [
        *("learning_rate: 0", "weight_decay: -1", "grad_clip: 0", "beta1: 1", "beta2: -0.5", "epsilon: 0"),
        "grad_clip_type: 'all'",
    ]


def test_adam_is_built_as_in_2_x() -> None:
    schedule = TriangularSchedualer(10, 100)
    by_place, by_name = Adam(None, 1e-3, schedule), Adam(loss_var=None, lr=1e-3, lr_schedualer=schedule)
    assert by_place.settings == by_name.settings
    assert (by_place.learning_rate, by_place.grad_clip) == (1e-3, None)
    assert by_place.lr_scheduler is by_name.lr_scheduler is schedule
    assert OPTIMIZERS.name_of(Adam) == "adam"
