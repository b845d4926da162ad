"""LAMB and AdamWDL against numbers by hand, a library and a document; rates by layer; kinds of clipping."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Callable, Iterable, Sequence
from importlib.util import find_spec
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn
from torch.testing import assert_close

from helpers import tiny
from palm.backbone import BERT, ERNIE, Backbone
from palm.controller.controller import Controller
from palm.optimizer import AdamWDL, Lamb, ParameterGroups, clip, layerwise_lr_decay

SHAPES = {"a.weight": (4, 3), "a.bias": (3,), "b.weight": (3, 5), "norm.weight": (5,), "zero.weight": (2, 2)}


def parameters(dtype: torch.dtype = torch.float32) -> dict[str, nn.Parameter]:
    generator = torch.Generator().manual_seed(3)
    values = {name: torch.randn(shape, generator=generator, dtype=dtype) for name, shape in SHAPES.items()}
    values["zero.weight"].zero_()
    return {name: nn.Parameter(value) for name, value in values.items()}


def gradients(step: int) -> dict[str, torch.Tensor]:
    generator = torch.Generator().manual_seed(100 + step)
    return {name: torch.randn(shape, generator=generator) / (1 + step % 3) for name, shape in SHAPES.items()}


def timm_lamb() -> Any:
    """The class of timm, whose package as a whole needs torchvision."""
    spec = find_spec("timm")
    if spec is None or spec.origin is None:
        pytest.skip("timm is not installed (pip install --no-deps timm)")
    package = ModuleType("timm_optim")
    package.__path__ = [str(Path(spec.origin).parent / "optim")]
    sys.modules["timm_optim"] = package
    return importlib.import_module("timm_optim.lamb").Lamb


def test_one_step_of_lamb_by_hand() -> None:
    weight, bias = nn.Parameter(torch.tensor([[3.0, 4.0]])), nn.Parameter(torch.tensor([3.0, 4.0]))
    optimizer = Lamb(0.1, weight_decay=0.5, epsilon=1e-12).build([("weight", weight), ("bias", bias)])
    weight.grad, bias.grad = torch.tensor([[2.0, -7.0]]), torch.tensor([2.0, -7.0])
    optimizer.step()
    # Adam's first step is the sign of the gradient: u = (1, -1) + 0.5 * (3, 4) = (2.5, 1).
    # The weight's norm is 5 and that of u the root of 7.25; the bias takes Adam's step alone.
    scaled = 0.1 * 5 / 7.25**0.5
    assert_close(weight.detach(), torch.tensor([[3 - scaled * 2.5, 4 - scaled * 1.0]]))
    assert_close(bias.detach(), torch.tensor([2.9, 4.1]))


def test_lamb_is_that_of_timm_for_twenty_five_steps() -> None:
    theirs = parameters()
    decaying = [p for p in theirs.values() if p.ndim > 1]
    spared = [p for p in theirs.values() if p.ndim == 1]
    groups = [{"params": decaying, "weight_decay": 0.05}, {"params": spared, "weight_decay": 0.0}]
    reference = timm_lamb()(groups, lr=0.02, eps=1e-6, max_grad_norm=None, foreach=False)
    ours = parameters()
    optimizer = Lamb(0.02, weight_decay=0.05).build(ours.items())
    for step in range(25):
        for name, gradient in gradients(step).items():
            ours[name].grad, theirs[name].grad = gradient.clone(), gradient.clone()
        optimizer.step()
        reference.step()
        for name, parameter in ours.items():
            assert_close(parameter, theirs[name], rtol=2e-6, atol=2e-7)


def documented(values: dict[str, Any], rates: dict[str, float], steps: int) -> dict[str, Any]:
    """AdamWDL as its document writes it, in numpy and double precision; biases and norms do not decay."""
    means = {name: np.zeros_like(value) for name, value in values.items()}
    squares = {name: np.zeros_like(value) for name, value in values.items()}
    for t in range(1, steps + 1):
        for name, gradient in gradients(t - 1).items():
            grad = gradient.double().numpy()
            means[name] = 0.9 * means[name] + (1 - 0.9) * grad
            squares[name] = 0.999 * squares[name] + (1 - 0.999) * grad * grad
            rate = rates[name] * np.sqrt(1 - 0.999**t) / (1 - 0.9**t)
            decay = 0.1 if values[name].ndim > 1 else 0.0
            update = means[name] / (np.sqrt(squares[name]) + 1e-8) + decay * values[name]
            values[name] = values[name] - rate * update
    return values


def built(
    settings: AdamWDL, named: Iterable[tuple[str, nn.Parameter]], layers: Sequence[Sequence[str]]
) -> torch.optim.Optimizer:
    """The optimizer with the rates of a run."""
    named = list(named)
    optimizer = settings.build(named)
    factors = settings.layer_factors(lambda: layers)
    ParameterGroups().apply(optimizer, named, settings.learning_rate, {}, factors)
    return optimizer


def test_adamwdl_follows_its_document_for_twenty_five_steps() -> None:
    ours = parameters()
    expected = documented(
        {name: p.detach().double().numpy() for name, p in ours.items()},
        {"a.weight": 0.0025, "a.bias": 0.0025, "b.weight": 0.005, "norm.weight": 0.005, "zero.weight": 0.01},
        steps=25,
    )
    settings = AdamWDL(0.01, weight_decay=0.1, layerwise_decay=0.5)
    layers = [["a.weight", "a.bias"], ["b.weight", "norm.weight"], []]
    optimizer = built(settings, ours.items(), layers)
    for step in range(25):
        for name, gradient in gradients(step).items():
            ours[name].grad = gradient.clone()
        optimizer.step()
    for name, parameter in ours.items():
        np.testing.assert_allclose(parameter.detach().numpy(), expected[name], rtol=2e-5, atol=2e-6)


TABLES = {"bert": ["word", "position", "segment"], "ernie": ["word", "position", "segment", "task"]}


@pytest.mark.parametrize(("cls", "name"), [(BERT, "bert"), (ERNIE, "ernie")])
def test_rates_fall_layer_by_layer_down_to_the_embeddings(cls: Callable[..., Backbone], name: str) -> None:
    encoder = cls(16, 3, 2, 20, 8)
    settings = AdamWDL(0.08, layerwise_decay=0.5)
    optimizer = built(settings, encoder.named_parameters(), encoder.parameter_layers())
    by_parameter = {id(p): group["lr"] for group in optimizer.param_groups for p in group["params"]}
    rates = {name: by_parameter[id(parameter)] for name, parameter in encoder.named_parameters()}
    # Three layers: 0.08 in the topmost, halved in each below, the embeddings are layer 0.
    for table in TABLES[name]:
        assert rates[f"embeddings.{table}.weight"] == pytest.approx(0.01)
    assert rates["embeddings.norm.bias"] == pytest.approx(0.01)
    for layer, rate in enumerate((0.02, 0.04, 0.08)):
        own = {value for key, value in rates.items() if key.startswith(f"layers.{layer}.")}
        assert own == {rate}
    assert (rates["pooler.weight"], rates["pooler.bias"]) == (0.08, 0.08)
    assert len(rates) == len(list(encoder.parameters()))


def test_the_rule_of_rates_and_of_decay_can_be_given() -> None:
    assert [layerwise_lr_decay(0.5, layer, 3) for layer in range(4)] == [0.125, 0.25, 0.5, 1.0]
    pair = [("low.weight", nn.Parameter(torch.ones(2, 2))), ("high.bias", nn.Parameter(torch.ones(2)))]
    settings = AdamWDL(
        1.0,
        weight_decay=0.3,
        set_param_lr_fun=lambda decay, layer, n: decay * (layer + 1) / (n + 1),
        apply_decay_param_fun=lambda name: name.endswith("bias"),
    )
    layers = [["low.weight"], ["high.bias"]]
    optimizer = built(settings, pair, layers)
    told = {id(p): (g["lr"], g["weight_decay"]) for g in optimizer.param_groups for p in g["params"]}
    assert [told[id(p)] for _, p in pair] == [(0.5, 0.0), (1.0, 0.3)]
    by_path = AdamWDL(1.0, set_param_lr_fun="palm.optimizer.layerwise_lr_decay", layerwise_decay=0.5)
    assert built(by_path, pair, layers).param_groups[0]["lr"] == 0.5


def two_gradients() -> list[nn.Parameter]:
    small, large = nn.Parameter(torch.zeros(2)), nn.Parameter(torch.zeros(2))
    small.grad, large.grad = torch.tensor([0.3, -0.4]), torch.tensor([6.0, -8.0])
    return [small, large, nn.Parameter(torch.zeros(1))]


def test_gradients_are_clipped_each_by_its_own_norm() -> None:
    ours, theirs = two_gradients(), two_gradients()
    norm = clip(ours, 1.0, "norm")
    for parameter in theirs[:2]:
        nn.utils.clip_grad_norm_([parameter], 1.0)
    assert norm.item() == pytest.approx((0.25 + 100) ** 0.5)
    assert_close(ours[0].grad, torch.tensor([0.3, -0.4]))
    assert_close(ours[1].grad, torch.tensor([0.6, -0.8]))
    assert_close(ours[1].grad, theirs[1].grad)


def test_gradients_are_clipped_by_value() -> None:
    ours, theirs = two_gradients(), two_gradients()
    clip(ours, 0.35, "value")
    nn.utils.clip_grad_value_(theirs, 0.35)
    assert_close(ours[0].grad, torch.tensor([0.3, -0.35]))
    assert all(torch.equal(one.grad, other.grad) for one, other in zip(ours[:2], theirs[:2], strict=True))


@pytest.mark.parametrize("name", ["lamb", "adam"])
@pytest.mark.parametrize("kind", ["norm", "value"])
def test_every_optimizer_takes_every_kind_of_clipping_from_a_configuration(
    tmp_path: Path, name: str, kind: str
) -> None:
    config = tiny.config(
        tiny.write_files(tmp_path), "cls", optimizer=name, grad_clip=1e-3, grad_clip_type=kind
    )
    training = Controller(config | {"num_epochs": 1, "warmup_proportion": 0}, argv=[]).training()
    training.next_step()
    found = [p.grad for p in training.model.parameters() if p.grad is not None]
    sizes = [g.norm().item() if kind == "norm" else g.abs().max().item() for g in found]
    assert max(sizes) == pytest.approx(1e-3)
    assert sum(size == pytest.approx(1e-3) for size in sizes) > 3
