"""What every registered backbone and head keeps to; a new one is checked without being named."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from helpers.components import ARGUMENTS, SIZES, small, tensors
from palm.backbone import BACKBONES, Backbone
from palm.core.saved import Specs, Tensors
from palm.paradigm import HEADS, Head

ENCODERS = [BACKBONES[name] for name in BACKBONES]
every_backbone = pytest.mark.parametrize("cls", ENCODERS)
every_head = pytest.mark.parametrize("name", list(HEADS))
every_component = pytest.mark.parametrize("cls", [*ENCODERS, *(HEADS[name] for name in HEADS)])


def run(component: Backbone | Head) -> Tensors:
    outputs: Tensors = component(tensors(component.inputs_attr))
    return outputs


def check(declared: Specs, actual: Tensors) -> None:
    assert set(actual) == set(declared)
    for name, spec in declared.items():
        sizes = tuple(SIZES[size] if isinstance(size, str) else size for size in spec.shape)
        assert (tuple(actual[name].shape), actual[name].dtype) == (sizes, spec.dtype), name


def gradients(module: nn.Module, loss: Tensor) -> list[Tensor]:
    module.zero_grad()
    loss.backward()
    return [parameter.grad for parameter in module.parameters() if parameter.grad is not None]


@every_component
def test_what_it_declares_is_what_it_gives(cls: type[Any]) -> None:
    component = small(cls)
    check(component.outputs_attr, run(component))


@every_component
def test_its_state_makes_another_one_its_equal(cls: type[Any]) -> None:
    first, second = small(cls, seed=0), small(cls, seed=1)
    second.load_state_dict(first.state_dict())
    outputs, again = run(first), run(second)
    assert all(torch.equal(outputs[name], again[name]) for name in outputs)


@every_component
def test_its_settings_build_it_again_after_json(cls: type[Any]) -> None:
    component = small(cls)
    again = cls(**json.loads(json.dumps(component.settings, default=str)))
    assert again.settings == component.settings
    again.load_state_dict(component.state_dict())


@every_backbone
def test_a_backbone_has_the_inputs_and_outputs_of_the_document(cls: type[Backbone]) -> None:
    backbone = small(cls)
    assert {"token_ids", "input_mask"} <= set(backbone.inputs_attr)
    words = {"word_embedding", "embedding_table", "encoder_outputs"}
    assert set(backbone.outputs_attr) == words | {"sentence_embedding", "sentence_pair_embedding"}


@every_backbone
def test_a_backbone_gives_the_same_whatever_else_is_wanted(cls: type[Backbone]) -> None:
    backbone = small(cls)
    everything, inputs = run(backbone), tensors(backbone.inputs_attr)
    for wanted in backbone.outputs_attr:
        (alone,) = backbone(inputs, [wanted]).items()
        assert alone[0] == wanted
        torch.testing.assert_close(alone[1], everything[wanted], atol=1e-6, rtol=0)


@every_backbone
def test_a_backbone_learns_eight_rows(cls: type[Backbone]) -> None:
    backbone = small(cls).train()
    out = nn.Linear(ARGUMENTS["hidden_size"], 2)
    inputs, labels = tensors(backbone.inputs_attr), torch.tensor([0, 1] * 4)
    both = nn.ModuleList([backbone, out])

    def loss() -> Tensor:
        return F.cross_entropy(out(backbone(inputs)["sentence_embedding"]), labels)

    assert all(gradient.isfinite().all() for gradient in gradients(both, loss()))
    assert fall(both, loss, lr=0.001) < 0.5


@every_head
def test_an_output_layer_learns_eight_rows(name: str) -> None:
    head = small(HEADS[name]).train()
    if not list(head.parameters()):
        pytest.skip("it has no layer")
    features, targets = tensors(head.inputs_attr), tensors(head.targets_attr)

    def loss() -> Tensor:
        value: Tensor = head.loss(head(features), targets)
        assert value.shape == ()
        return value

    found = gradients(head, loss())
    assert len(found) == len(list(head.parameters()))
    assert all(gradient.isfinite().all() for gradient in found)
    assert fall(head, loss, lr=0.02) < 0.5


def fall(module: nn.Module, loss: Callable[[], Tensor], lr: float) -> float:
    """The least loss without dropout in 100 steps with it, as a part of that before."""
    torch.manual_seed(0)  # dropout's draws are those of every order of tests
    optimizer = torch.optim.Adam(module.parameters(), lr=lr)
    losses = [of_evaluation(module, loss)]
    for step in range(1, 101):
        optimizer.zero_grad()
        loss().backward()
        optimizer.step()
        if step % 10 == 0:  # near 0, one large step of Adam may lead away from it again
            losses.append(of_evaluation(module, loss))
    return min(losses) / losses[0]


def of_evaluation(module: nn.Module, loss: Callable[[], Tensor]) -> float:
    module.eval()
    value = loss().item()
    module.train()
    return value


@every_head
def test_an_output_layer_decodes_one_plain_value_per_row(name: str) -> None:
    head = small(HEADS[name])
    decoded = head.decode(run(head))
    assert len(decoded) == SIZES["examples" if "group_rows" in head.inputs_attr else "batch"]
    assert json.loads(json.dumps(decoded))
