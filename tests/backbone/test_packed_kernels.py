"""The GPU's kernels for packed sequences: what they are given and what is made of it, without a GPU.

The stand-ins compute on the CPU what the kernels document: the forward pass with the logarithms of its
softmax's sums, the backward pass from these alone. So an argument at the wrong place gives wrong numbers.
"""

from __future__ import annotations

import math
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor

from palm.backbone import attention as packed_kernels
from palm.backbone.attention import attend_packed, fits
from palm.backbone.packing import Packing, Scope

LENGTHS = (5, 1, 9, 3)


def case(first_only: bool, dtype: torch.dtype, window: int | None = None) -> tuple[Any, ...]:
    packing = Packing.of(torch.arange(max(LENGTHS)) < torch.tensor(LENGTHS)[:, None])
    query, key, value = (torch.randn(sum(LENGTHS), 2, 8, dtype=dtype) for _ in range(3))
    parts = [query[packing.first] if first_only else query, key, value]
    return *(part.requires_grad_() for part in parts), packing.scope(first_only, window)


def mask_of(state: Tensor, offset: Tensor, shape: torch.Size, dropout_prob: float) -> Tensor:
    generator = torch.Generator().manual_seed(int(state) + int(offset))
    return (torch.rand(shape, generator=generator, dtype=torch.float64) >= dropout_prob) / (1 - dropout_prob)


def pieces(ends_q: Tensor, ends_k: Tensor, longest_q: int, longest_k: int) -> list[tuple[slice, slice]]:
    assert ends_q.dtype == ends_k.dtype == torch.int32
    assert (longest_q, longest_k) == (max(ends_q.diff()), max(ends_k.diff())) or longest_q == longest_k
    edges = zip(ends_q.tolist(), ends_q.tolist()[1:], ends_k.tolist(), ends_k.tolist()[1:], strict=False)
    return [(slice(a, b), slice(c, d)) for a, b, c, d in edges]


def scores_of(q: Tensor, k: Tensor, left: int, right: int) -> Tensor:
    """[heads, queries, keys]"""
    scores = torch.einsum("qhd,khd->hqk", q.double(), k.double()) / math.sqrt(q.shape[-1])
    distance = torch.arange(k.shape[0]) - torch.arange(q.shape[0])[:, None]
    hidden = (distance < -left) if left >= 0 else torch.zeros_like(distance, dtype=torch.bool)
    return scores.masked_fill(hidden | (distance > right if right >= 0 else hidden), -math.inf)


def forward(q: Tensor, k: Tensor, v: Tensor, ends: Any, p: float, left: int = -1, right: int = -1) -> Any:
    state, offset = torch.tensor(17), torch.tensor(4)
    gathered, sums = torch.full_like(q, math.nan), torch.zeros(q.shape[1], q.shape[0], dtype=torch.float64)
    for rows, columns in pieces(*ends):
        scores = scores_of(q[rows], k[columns], left, right)
        sums[:, rows] = scores.logsumexp(-1)
        weight = scores.softmax(-1) * mask_of(state, offset, scores.shape, p)
        gathered[rows] = torch.einsum("hqk,khd->qhd", weight, v[columns].double()).to(q.dtype)
    return gathered, sums, state, offset


def backward(
    grad: Tensor, q: Tensor, k: Tensor, v: Tensor, out: Tensor, sums: Tensor, ends: Any, p: float,
    state: Tensor, offset: Tensor, left: int = -1, right: int = -1,
) -> tuple[Tensor, Tensor, Tensor]:  # fmt: skip
    found = [torch.full_like(part, math.nan) for part in (q, k, v)]
    for rows, columns in pieces(*ends):
        scores = scores_of(q[rows], k[columns], left, right)
        weight, mask = (scores - sums[:, rows, None]).exp(), mask_of(state, offset, scores.shape, p)
        above = grad[rows].double()
        mean = (above * out[rows].double()).sum(-1).T[..., None]  # [heads, queries, 1]
        of_scores = weight * (torch.einsum("qhd,khd->hqk", above, v[columns].double()) * mask - mean)
        of_scores /= math.sqrt(q.shape[-1])
        found[0][rows] = torch.einsum("hqk,khd->qhd", of_scores, k[columns].double()).to(q.dtype)
        found[1][columns] = torch.einsum("hqk,qhd->khd", of_scores, q[rows].double()).to(q.dtype)
        found[2][columns] = torch.einsum("hqk,qhd->khd", weight * mask, above).to(q.dtype)
    return found[0], found[1], found[2]


def flash_forward(
    query, key, value, cum_seq_q, cum_seq_k, max_q, max_k, dropout_p, is_causal, return_debug_mask,
    *, scale=None, window_size_left=None, window_size_right=None,
):  # fmt: skip  # type: ignore[no-untyped-def]
    assert (is_causal, return_debug_mask, scale) == (False, False, None)
    left, right = (-1 if side is None else side for side in (window_size_left, window_size_right))
    ends = (cum_seq_q, cum_seq_k, max_q, max_k)
    return *forward(query, key, value, ends, dropout_p, left, right), torch.empty(0)


def flash_backward(
    grad_out, query, key, value, out, logsumexp, cum_seq_q, cum_seq_k, max_q, max_k, dropout_p, is_causal,
    rng_state, unused, *, scale=None, window_size_left=None, window_size_right=None,
):  # fmt: skip  # type: ignore[no-untyped-def]
    assert (is_causal, scale) == (False, None)
    left, right = (-1 if side is None else side for side in (window_size_left, window_size_right))
    ends = (cum_seq_q, cum_seq_k, max_q, max_k)
    return backward(
        grad_out, query, key, value, out, logsumexp, ends, dropout_p, rng_state, unused, left, right
    )


STAND_INS = SimpleNamespace(
    _flash_attention_forward=flash_forward,
    _flash_attention_backward=flash_backward,
)


def by_definition(query: Tensor, key: Tensor, value: Tensor, scope: Scope, p: float) -> Tensor:
    """softmax, the stand-ins' dropout, and autograd, in float64."""
    rows, side = [], -1 if scope.window is None else scope.window
    for (q0, q1), (k0, k1) in zip(scope.queries.bounds, scope.keys.bounds, strict=True):
        scores = scores_of(query[q0:q1], key[k0:k1], side, side)
        weight = scores.softmax(-1) * mask_of(torch.tensor(17), torch.tensor(4), scores.shape, p)
        rows.append(torch.einsum("hqk,khd->qhd", weight, value[k0:k1].double()))
    return torch.cat(rows)


@pytest.mark.parametrize("dropout_prob", [0.0, 0.3])
@pytest.mark.parametrize(
    ("dtype", "first_only", "window", "atol"),
    [
        (torch.bfloat16, False, None, 0.05),
        (torch.bfloat16, True, None, 0.05),
        (torch.bfloat16, False, 2, 0.05),
    ],
)
def test_results_and_gradients_are_those_of_the_definition(
    monkeypatch: pytest.MonkeyPatch,
    dtype: torch.dtype,
    first_only: bool,
    window: int | None,
    atol: float,
    dropout_prob: float,
) -> None:
    torch.manual_seed(0)
    monkeypatch.setattr(packed_kernels, "aten", STAND_INS)
    *parts, scope = case(first_only, dtype, window)
    assert fits(parts[0], scope)
    results = []
    for function in (attend_packed, by_definition):
        leaves = [part.detach().requires_grad_() for part in parts]
        gathered = function(*leaves, scope, dropout_prob)
        gathered.backward(
            torch.arange(gathered.numel(), dtype=torch.float64).view_as(gathered).cos().to(gathered)
        )
        results.append([gathered, *(leaf.grad for leaf in leaves)])
    for ours, theirs in zip(*results, strict=True):
        torch.testing.assert_close(ours.double(), theirs.double(), atol=atol, rtol=0.02)


@pytest.mark.parametrize("first_only", [False, True])
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_torchs_own_operators_take_and_give_these_shapes(dtype: torch.dtype, first_only: bool) -> None:
    *given, scope = case(first_only, dtype)
    # On "meta"; on fake tensors of a GPU, autograd crashes in a torch that was built without one.
    parts = [torch.empty(part.shape, dtype=dtype, device="meta", requires_grad=True) for part in given]
    gathered = attend_packed(*parts, scope, 0.1)
    gathered.backward(torch.empty_like(gathered))
    assert (gathered.shape, gathered.dtype) == (parts[0].shape, dtype)
    assert [part.grad.shape for part in parts if part.grad is not None] == [part.shape for part in parts]


@pytest.mark.parametrize(("capability", "expected"), [((7, 5), False), ((8, 0), True), ((9, 0), True)])
def test_a_gpu_older_than_ampere_has_no_flash_attention(
    capability: tuple[int, int], expected: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda _: capability)
    assert packed_kernels.has_flash_attention(torch.device("cuda", 0)) is expected
    assert packed_kernels.has_flash_attention(torch.device("cpu"))


def test_what_does_not_fit_is_not_given_to_a_kernel() -> None:
    query, _, _, scope = case(False, torch.float32)
    assert [fits(query[..., :6].half(), scope), fits(query, scope), fits(query.double(), scope)] == [
        False
    ] * 3
    assert not fits(torch.empty(len(query), 2, 264).half(), scope)
    windowed, first = case(False, torch.float32, 2)[3], case(True, torch.float32, 2)[3]
    assert [fits(query.half(), windowed), fits(query.half(), first)] == [True, False]
