"""Packed attention on a GPU, by its definition; the same on a CPU, so that the test is known to work."""

from __future__ import annotations

import pytest
import torch

from helpers.attention_cases import by_definition, case
from palm.backbone.attention import attend
from palm.backbone.packing import Scope, Sequences

GPU = pytest.param("cuda", marks=pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA GPU"))


@pytest.mark.parametrize("device", ["cpu", GPU])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("dropout_prob", [0.0, 0.1])
@pytest.mark.parametrize("window", [None, 3])
@pytest.mark.parametrize("first_only", [False, True])
def test_attention_is_what_its_definition_says(
    device: str, dtype: torch.dtype, dropout_prob: float, window: int | None, first_only: bool
) -> None:
    *parts, scope = case(first_only=first_only, dtype=dtype, window=window)
    exact = by_definition(*(part.double() for part in parts), scope)
    rows = {s: Sequences(s.offsets.to(device), s.longest) for s in (scope.queries, scope.keys)}
    there = Scope(rows[scope.queries], rows[scope.keys], window)
    on_device = [part.to(device) for part in parts]
    draws = [attend(*on_device, there, dropout_prob).cpu() for _ in range(200 if dropout_prob else 1)]
    mean = torch.stack(draws).double().mean(0)
    torch.testing.assert_close(mean, exact, atol=0.2 if dropout_prob else 0.02, rtol=0.02)
