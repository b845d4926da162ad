"""Attention over packed sequences: every way to compute it gives the same, with the same derivatives."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor

from helpers.attention_cases import LENGTHS, by_definition, case
from palm.backbone.attention import attend_padded, attend_without_gradients
from palm.backbone.cpu_kernels import attend_by_groups, layout_of
from palm.backbone.packing import Packing

WAYS: list[Callable[..., Tensor]] = [
    lambda *case: attend_by_groups(*case, 0.0),
    attend_without_gradients,
    lambda *case: attend_padded(*case, 0.0),
]


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("first_only", [False, True])
def test_without_gradients_no_bit_depends_on_the_neighbours(first_only: bool, dtype: torch.dtype) -> None:
    lengths = (9, 9, 9, 40, 40, 9, 70, 70)
    query, key, value, scope = case(lengths, first_only, dtype)
    together = attend_without_gradients(query, key, value, scope)
    for (q0, q1), (k0, k1) in zip(scope.queries.bounds, scope.keys.bounds, strict=True):
        own = Packing.of(torch.ones(1, k1 - k0, dtype=torch.bool)).scope(first_only, None)
        alone = attend_without_gradients(query[q0:q1], key[k0:k1], value[k0:k1], own)
        assert torch.equal(together[q0:q1], alone)
    expected = by_definition(query.double(), key.double(), value.double(), scope)
    within = 2e-2 if dtype == torch.bfloat16 else 1e-6
    torch.testing.assert_close(together.double(), expected, atol=within, rtol=0)


def test_dropout_in_a_group_drops_single_weights_of_single_heads() -> None:
    query, key, value, scope = case((3, 9, 30, 11, 12, 25), dtype=torch.float32)
    value = torch.ones_like(value).requires_grad_()
    torch.manual_seed(3)

    kept = attend_by_groups(query, key, value, scope, 0.25)  # sums of weights: 1 on the average
    kept.sum().backward()

    assert kept.std() > 0.05
    assert torch.equal(kept[..., :1].expand_as(kept), kept)
    assert abs(kept.mean() - 1) < 0.05
    torch.testing.assert_close(value.grad.sum(), kept.sum())


def test_a_window_cuts_long_sequences_and_compares_only_what_is_near() -> None:
    groups = layout_of(case((150, 3, 2), window=1)[3], 2).groups

    expected = [(2, 64, 96), (2, 64, 96), (2, 22, 32), (2, 3, 32), (2, 2, 32)]
    assert [group.shape for group in groups] == expected
    bias = groups[3].bias
    assert bias is not None
    assert (bias[0, 0, :, :4] == 0).int().tolist() == [[1, 1, 0, 0], [1, 1, 1, 0], [0, 1, 1, 0]]


@pytest.mark.parametrize("first_only", [False, True])
@pytest.mark.parametrize("way", WAYS, ids=["by groups", "without gradients", "padded"])
def test_every_way_gives_what_the_definition_says(way: Callable[..., Tensor], first_only: bool) -> None:
    given = case(first_only=first_only)
    torch.testing.assert_close(way(*given), by_definition(*given), atol=1e-12, rtol=0)


@pytest.mark.parametrize("window", [None, 0, 3, 70])
@pytest.mark.parametrize("first_only", [False, True])
@pytest.mark.parametrize("way", [WAYS[0], WAYS[2]], ids=["by groups", "padded"])
def test_within_a_window_results_and_gradients_are_those_of_the_definition(
    way: Callable[..., Tensor], first_only: bool, window: int | None
) -> None:
    results = []
    for function in (way, by_definition):
        *parts, scope = case((*LENGTHS, 150), first_only=first_only, window=window)
        leaves = [part.detach().requires_grad_() for part in parts]
        gathered = function(*leaves, scope)
        gathered.backward(torch.arange(gathered.numel(), dtype=torch.float64).view_as(gathered).cos())
        results.append([gathered, *(leaf.grad for leaf in leaves)])
    for ours, theirs in zip(*results, strict=True):
        torch.testing.assert_close(ours, theirs, atol=1e-12, rtol=0)


def test_gradients_through_dropout_are_those_of_finite_differences() -> None:
    *parts, scope = case((5, 1, 3))

    def seeded(*leaves: Tensor) -> Tensor:
        torch.manual_seed(4)
        return attend_by_groups(*leaves, scope, 0.3)

    assert torch.autograd.gradcheck(seeded, [part.detach().requires_grad_() for part in parts])
