"""Weights are cast to bfloat16 all at once, with the bits of casting each where it is used."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import AbstractContextManager, nullcontext

import pytest
import torch
from torch import Tensor

from palm.backbone import BERT, layer
from palm.core.numerics.fused_cast import cast, cast_together


def gradients(checkpointed: bool = False, frozen: bool = False) -> Iterator[tuple[str, Tensor | None]]:
    torch.manual_seed(1)
    sizes = {"vocab_size": 50, "max_position_embeddings": 16}
    bert = BERT(hidden_size=32, num_hidden_layers=2, num_attention_heads=2, **sizes)
    if checkpointed:
        bert.checkpoint_activations()
    bert.layers[0].requires_grad_(not frozen)
    ids, mask = torch.randint(50, (3, 9)), torch.arange(9) < torch.tensor([9, 4, 7])[:, None]
    zeros = torch.zeros_like(ids)
    batch = {"token_ids": ids, "position_ids": zeros, "segment_ids": zeros, "input_mask": mask}
    with torch.autocast("cpu", torch.bfloat16):
        outputs = bert(batch, ["encoder_outputs"])["encoder_outputs"]
    outputs.float().square().sum().backward()
    return ((name, parameter.grad) for name, parameter in bert.named_parameters())


@pytest.mark.parametrize("ranks", [1, 2])
@pytest.mark.parametrize("frozen", [False, True])
@pytest.mark.parametrize("checkpointed", [False, True])
def test_gradients_are_those_of_casting_each_weight(
    monkeypatch: pytest.MonkeyPatch, checkpointed: bool, frozen: bool, ranks: int
) -> None:
    monkeypatch.setattr(layer, "world_size", lambda: ranks)
    together = dict(gradients(checkpointed, frozen))
    monkeypatch.setattr(layer, "cast_together", lambda *_: nullcontext())

    for name, alone in gradients(checkpointed, frozen):
        ours = together[name]
        assert (ours is None) == (alone is None)
        assert ours is None or alone is None or torch.equal(ours, alone)


@pytest.mark.parametrize(("ranks", "expected"), [(1, [24]), (2, [12, 12])])
def test_one_of_several_ranks_casts_each_layer_by_itself(
    monkeypatch: pytest.MonkeyPatch, ranks: int, expected: list[int]
) -> None:
    counts = []

    def counted(parameters: Iterable[Tensor], dtype: torch.dtype) -> AbstractContextManager[None]:
        chosen = list(parameters)
        counts.append(len(chosen))
        return cast_together(chosen, dtype)

    monkeypatch.setattr(layer, "world_size", lambda: ranks)
    monkeypatch.setattr(layer, "cast_together", counted)
    list(gradients())
    assert counts == expected  # six linear layers in each, with weight and bias


def test_one_copy_casts_all_and_who_is_not_used_has_no_gradient() -> None:
    used, unused = torch.randn(3, requires_grad=True), torch.randn(3, requires_grad=True)
    with cast_together([used, unused], torch.bfloat16):
        first, again = cast(used, torch.bfloat16), cast(used, torch.bfloat16)
        assert cast(used, torch.float16).dtype == torch.float16
    assert first is again
    assert cast(used, torch.bfloat16) is not first
    (first * 2).sum().backward()

    assert torch.equal(first.detach(), used.detach().bfloat16())
    assert used.grad is not None
    assert used.grad.tolist() == [2.0, 2.0, 2.0]
    assert unused.grad is None
