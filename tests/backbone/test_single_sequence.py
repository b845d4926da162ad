"""One row by itself has the bits that the layers give it, and follows every change of weights."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn

from palm.backbone import BERT
from palm.backbone.encoder import Encoder
from palm.core.numerics.precision import Precision, computing
from palm.core.numerics.weight_cache import WeightCache
from palm.core.tensor_specs import Tensors

CPU = torch.device("cpu")


def encoder(**settings: Any) -> Encoder:
    torch.manual_seed(0)
    made = BERT(32, 3, 4, 50, 128, **settings).eval()
    for name, parameter in made.named_parameters():
        nn.init.normal_(parameter, 1.0 if name.endswith("norm.weight") else 0.0, 0.2)
    return made


def row(length: int) -> Tensors:
    return {
        "token_ids": torch.arange(length)[None] * 7 % 50,
        "position_ids": torch.arange(length)[None],
        "segment_ids": (torch.arange(length)[None] > length // 2).long(),
        "input_mask": torch.ones(1, length, dtype=torch.bool),
    }


@torch.inference_mode()
def through(model: Encoder, batch: Tensors, kept: WeightCache, precision: Precision = "bf16") -> Tensors:
    with kept.active(), computing(precision, CPU):
        return model(batch, ["encoder_outputs", "sentence_embedding"])


@torch.inference_mode()
def by_layers(model: Encoder, batch: Tensors, precision: Precision = "bf16") -> Tensors:
    """The same by whoever keeps nothing, which goes through the layers' own `forward`."""
    with computing(precision, CPU):
        return model(batch, ["encoder_outputs", "sentence_embedding"])


@pytest.fixture
def calls(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """How many tokens each layer has had that was called as a module."""
    from palm.backbone.layer import PostNorm

    found: list[int] = []
    forward = PostNorm.forward

    def counted(self: PostNorm, tokens: torch.Tensor, *rest: Any) -> torch.Tensor:
        found.append(len(tokens))
        return forward(self, tokens, *rest)

    monkeypatch.setattr(PostNorm, "forward", counted)
    return found


@pytest.mark.parametrize("precision", ["fp32", "bf16"])
@pytest.mark.parametrize("length", [1, 14, 64, 127])
def test_the_bits_are_those_of_the_layers(length: int, precision: Precision, calls: list[int]) -> None:
    model, batch, kept = encoder(), row(length), WeightCache()
    for wanted in (["encoder_outputs", "sentence_embedding"], ["sentence_embedding"]):
        with torch.inference_mode(), computing(precision, CPU):
            plain = model(batch, wanted)
            assert len(calls) == 3
            calls.clear()
            with kept.active():
                alone = [model(batch, wanted) for _ in range(2)]
        assert calls == []
        for name in wanted:
            assert torch.equal(alone[0][name], plain[name])
            assert torch.equal(alone[1][name], plain[name])


def set_weight(model: Encoder) -> None:
    model.layers[1].ffn.inner.weight.data = torch.full((128, 32), 0.1)  # type: ignore[union-attr]


def write_weight(model: Encoder) -> None:
    with torch.no_grad():
        model.layers[0].attention.value.bias.mul_(-3)  # type: ignore[union-attr]


def step(model: Encoder) -> None:
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.1, fused=True)
    for parameter in model.parameters():
        parameter.grad = torch.ones_like(parameter)
    optimizer.step()


def exchange_weight(model: Encoder) -> None:
    model.layers[2].ffn_norm.weight = nn.Parameter(torch.full((32,), 2.0))  # type: ignore[union-attr]


def exchange_module(model: Encoder) -> None:
    model.layers[2].attention.output = nn.Linear(32, 32)  # type: ignore[union-attr]


def exchange_layer(model: Encoder) -> None:
    model.layers[1] = encoder().layers[0]


@pytest.mark.parametrize(
    "change", [set_weight, write_weight, step, exchange_weight, exchange_module, exchange_layer]
)
@pytest.mark.parametrize("precision", ["fp32", "bf16"])
def test_whatever_changes_is_seen(change: Callable[[Encoder], None], precision: Precision) -> None:
    model, batch, kept = encoder(), row(9), WeightCache()
    before = through(model, batch, kept, precision)
    change(model)
    after, expected = through(model, batch, kept, precision), by_layers(model, batch, precision)
    for name in before:
        assert torch.equal(after[name], expected[name])
        assert not torch.equal(after[name], before[name])


def test_who_listens_or_trains_gets_the_layers(calls: list[int]) -> None:
    model, batch, kept = encoder(hidden_dropout_prob=0.5), row(9), WeightCache()
    before = through(model, batch, kept)
    assert calls == []
    heard: list[int] = []
    handle = model.layers[1].register_forward_hook(lambda *_: heard.append(1))
    assert torch.equal(through(model, batch, kept)["encoder_outputs"], before["encoder_outputs"])
    assert (heard, len(calls)) == ([1], 3)
    handle.remove()
    calls.clear()
    model.layers[0].train()
    assert not torch.equal(through(model, batch, kept)["encoder_outputs"], before["encoder_outputs"])
    assert len(calls) == 3


@torch.inference_mode()
def test_several_rows_are_packed_as_ever(calls: list[int]) -> None:
    model, kept = encoder(), WeightCache()
    batch = {name: value.repeat(2, 1) for name, value in row(9).items()}
    through(model, batch, kept)
    assert calls == [18, 18, 18]
