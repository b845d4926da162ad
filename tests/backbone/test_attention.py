"""Attention over packed sequences: every way to compute it gives the same, with the same derivatives."""

from __future__ import annotations

import inspect
import math
from collections.abc import Callable

import pytest
import torch
from torch import Tensor
from torch.nn import functional as F

from palm.backbone import attending
from palm.backbone.attending import (
    LINE,
    TOGETHER,
    attend,
    attend_at_once,
    attend_by_pieces,
    attend_without_gradients,
    pieces_of,
    varlen_kernel,
)
from palm.backbone.packing import Packing, Sequences

LENGTHS = (7, 1, 40, LINE, TOGETHER + 1, TOGETHER, TOGETHER, 2, 3)
"""Some that are taken together and some alone; whole lines and others, the last cannot be filled up."""

pytestmark = pytest.mark.filterwarnings("ignore:The PyTorch API of nested tensors")

Case = tuple[Tensor, Tensor, Tensor, Sequences, Sequences]


def case(
    lengths: tuple[int, ...] = LENGTHS, first_only: bool = False, dtype: torch.dtype = torch.float64
) -> Case:
    torch.manual_seed(0)
    packing = Packing.of(torch.arange(max(lengths)) < torch.tensor(lengths)[:, None])
    query, key, value = torch.randn(3, sum(lengths), 2, 8, dtype=dtype).unbind(0)
    if first_only:
        return query[packing.first], key, value, packing.first_only, packing.sequences
    return query, key, value, packing.sequences, packing.sequences


def by_definition(query: Tensor, key: Tensor, value: Tensor, asking: Sequences, asked: Sequences) -> Tensor:
    """softmax(q · k / sqrt(d)) · v, a sequence and a head at a time."""
    rows = []
    for (q0, q1), (k0, k1) in zip(asking.bounds, asked.bounds, strict=True):
        heads = []
        for head in range(query.shape[1]):
            scores = query[q0:q1, head] @ key[k0:k1, head].T / math.sqrt(query.shape[2])
            heads.append(scores.softmax(-1) @ value[k0:k1, head])
        rows.append(torch.stack(heads, 1))
    return torch.cat(rows)


WAYS: list[Callable[..., Tensor]] = [
    lambda *case: attend_by_pieces(*case, 0.0),
    attend_without_gradients,
    lambda *case: attend_at_once(*case, 0.0),
]


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("first_only", [False, True])
def test_without_gradients_no_bit_depends_on_the_neighbours(first_only: bool, dtype: torch.dtype) -> None:
    lengths = (9, 9, 9, 40, 40, 9)
    query, key, value, asking, asked = case(lengths, first_only, dtype)
    together = attend_without_gradients(query, key, value, asking, asked)
    for (q0, q1), (k0, k1) in zip(asking.bounds, asked.bounds, strict=True):
        q, k, v = (part.transpose(0, 1)[None] for part in (query[q0:q1], key[k0:k1], value[k0:k1]))
        alone = F.scaled_dot_product_attention(q, k, v)[0].transpose(0, 1)
        assert torch.equal(together[q0:q1], alone)


def test_short_neighbours_are_one_piece() -> None:
    pieces = pieces_of(*case()[3:], sum(LENGTHS))
    assert [piece.length for piece in pieces] == [48, LINE, TOGETHER + 1, TOGETHER, TOGETHER, 5]
    assert [piece.strangers is None for piece in pieces] == [False, True, True, True, True, False]
    assert pieces[5].strangers is not None
    assert pieces[5].strangers.int().tolist() == [[0, 0, 1, 1, 1]] * 2 + [[1, 1, 0, 0, 0]] * 3


@pytest.mark.parametrize("first_only", [False, True])
@pytest.mark.parametrize("way", WAYS, ids=["by pieces", "without gradients", "at once"])
def test_every_way_gives_what_the_definition_says(way: Callable[..., Tensor], first_only: bool) -> None:
    given = case(first_only=first_only)
    torch.testing.assert_close(way(*given), by_definition(*given), atol=1e-12, rtol=0)


@pytest.mark.parametrize("first_only", [False, True])
@pytest.mark.parametrize("way", [WAYS[0], WAYS[2]], ids=["by pieces", "at once"])
def test_gradients_are_those_of_the_definition(way: Callable[..., Tensor], first_only: bool) -> None:
    gradients = []
    for function in (way, by_definition):
        *parts, asking, asked = case(first_only=first_only)
        leaves = [part.detach().requires_grad_() for part in parts]
        gathered = function(*leaves, asking, asked)
        gathered.backward(torch.arange(gathered.numel(), dtype=torch.float64).view_as(gathered).cos())
        gradients.append([leaf.grad for leaf in leaves])
    for ours, theirs in zip(*gradients, strict=True):
        torch.testing.assert_close(ours, theirs, atol=1e-12, rtol=0)


def test_gradients_through_dropout_are_those_of_finite_differences() -> None:
    *parts, asking, asked = case((5, 1, 3))

    def seeded(*leaves: Tensor) -> Tensor:
        torch.manual_seed(4)
        return attend_by_pieces(*leaves, asking, asked, 0.3)

    assert torch.autograd.gradcheck(seeded, [part.detach().requires_grad_() for part in parts])


def test_dropout_zeroes_weights_and_keeps_the_expectation() -> None:
    query, key, _, asking, asked = case((100,))
    ones = torch.ones_like(key)
    torch.manual_seed(0)
    sums = torch.stack([attend_by_pieces(query, key, ones, asking, asked, 0.25) for _ in range(50)])
    assert sums.std() > 0.01
    assert sums.mean() == pytest.approx(1, abs=4e-3)  # of weights that sum to 1
    torch.manual_seed(0)
    assert torch.equal(attend(query, key, ones, asking, asked, 0.25), sums[0])


def test_rounded_to_bf16_it_stays_close() -> None:
    given = case(dtype=torch.bfloat16)
    exact = by_definition(*(part.double() for part in given[:3]), *given[3:])
    for way in WAYS[:2]:
        torch.testing.assert_close(way(*given).double(), exact, atol=0.02, rtol=0.02)


def reference_varlen_attn(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    cu_seq_q: Tensor,
    cu_seq_k: Tensor,
    max_q: int,
    max_k: int,
) -> Tensor:
    """What `torch.nn.attention.varlen.varlen_attn` computes on a GPU, on any device; checks its arguments."""
    for offsets, longest, packed in ((cu_seq_q, max_q, query), (cu_seq_k, max_k, key)):
        assert offsets.dtype == torch.int32
        assert (int(offsets[0]), int(offsets[-1])) == (0, len(packed))
        assert int(offsets.diff().max()) <= longest
    parts = [
        part.tensor_split(edges[1:-1].tolist())
        for part, edges in ((query, cu_seq_q), (key, cu_seq_k), (value, cu_seq_k))
    ]
    return torch.cat(
        [
            F.scaled_dot_product_attention(*(part.transpose(0, 1) for part in row)).transpose(0, 1)
            for row in zip(*parts, strict=True)
        ]
    )


@pytest.mark.parametrize("first_only", [False, True])
def test_packed_bf16_without_dropout_goes_to_torchs_kernel(
    monkeypatch: pytest.MonkeyPatch, first_only: bool
) -> None:
    monkeypatch.setattr(attending, "varlen_kernel", lambda: reference_varlen_attn)
    given = case(first_only=first_only, dtype=torch.bfloat16)
    exact = by_definition(*(part.double() for part in given[:3]), *given[3:])
    torch.testing.assert_close(attend_at_once(*given, 0.0).double(), exact, atol=0.02, rtol=0.02)


def test_torchs_kernel_takes_the_arguments_that_it_is_given() -> None:
    kernel = varlen_kernel()
    if kernel is None:
        pytest.skip("this torch has no varlen_attn")
    names = list(inspect.signature(reference_varlen_attn).parameters)
    assert list(inspect.signature(kernel).parameters)[: len(names)] == names


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA GPU")
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("dropout_prob", [0.0, 0.1])
def test_a_gpu_gives_what_a_cpu_gives(dtype: torch.dtype, dropout_prob: float) -> None:
    query, key, value, asking, asked = case(dtype=dtype)
    exact = by_definition(query.double(), key.double(), value.double(), asking, asked)
    there = [Sequences(s.offsets.cuda(), s.longest) for s in (asking, asked)]
    draws = [attend(query.cuda(), key.cuda(), value.cuda(), *there, dropout_prob).cpu() for _ in range(200)]
    mean = torch.stack(draws).double().mean(0)
    torch.testing.assert_close(mean, exact, atol=0.2 if dropout_prob else 0.02, rtol=0.02)
