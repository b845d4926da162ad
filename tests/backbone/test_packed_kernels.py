"""The GPU's kernels for packed sequences: what they are given and what is made of it, without a GPU.

The stand-ins compute on the CPU what the kernels document: the forward pass with the logarithms of its
softmax's sums, the backward pass from these alone. So an argument at the wrong place gives wrong numbers.
"""

from __future__ import annotations

from typing import Any

import pytest
import torch

from palm.backbone import attention as packed_kernels
from palm.backbone.attention import attend_packed, fits
from palm.backbone.packing import Packing

LENGTHS = (5, 1, 9, 3)


def case(first_only: bool, dtype: torch.dtype, window: int | None = None) -> tuple[Any, ...]:
    packing = Packing.of(torch.arange(max(LENGTHS)) < torch.tensor(LENGTHS)[:, None])
    query, key, value = (torch.randn(sum(LENGTHS), 2, 8, dtype=dtype) for _ in range(3))
    parts = [query[packing.first] if first_only else query, key, value]
    return *(part.requires_grad_() for part in parts), packing.scope(first_only, window)


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
