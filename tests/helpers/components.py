"""Small components, and tensors as they declare them."""

from __future__ import annotations

import inspect
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from palm.core.saved import Specs, Tensors
from palm.optimizer.lr_sched import Schedule

ARGUMENTS = {
    "hidden_size": 32,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "vocab_size": 20,
    "max_position_embeddings": 8,
    "n_classes": 3,
    "n_span_classes": 2,
    "encoder_config_path": Path(__file__).with_name("tiny_modernbert.json"),
}
"""Small values for constructors' parameters, by name; what is not here has its default."""


SIZES = {"batch": 8, "seq": 6, "masks": 8, "examples": 4, "texts": 2, "words": 4, "spans": 3}
"""Sizes of the contract's free dimensions."""


class Halving(Schedule):
    """A schedule without a warm-up: half the rate after every quarter of the run."""

    def __init__(self, num_train_steps: int) -> None:
        self.num_train_steps = num_train_steps

    def __call__(self, step: int) -> float:
        return 0.5 ** (4 * step // self.num_train_steps)


def small(cls: type[Any], seed: int = 0) -> Any:
    parameters = inspect.signature(cls).parameters
    if "encoder_config_path" in parameters:
        pytest.importorskip("transformers", minversion="5.9")
    torch.manual_seed(seed)
    return cls(**{name: value for name, value in ARGUMENTS.items() if name in parameters}).eval()


def encoder_inputs(ids: Tensor, mask: Tensor | None = None, **more: Tensor) -> Tensors:
    """What an encoder reads: positions ascend, there is one segment, and without a mask all tokens count."""
    positions = torch.arange(ids.shape[1]).expand_as(ids)
    given = torch.ones_like(ids, dtype=torch.bool) if mask is None else mask
    segments = torch.zeros_like(ids)
    return {
        **{"token_ids": ids, "position_ids": positions, "segment_ids": segments, "input_mask": given},
        **more,
    }


def same_with_gradient(ours: Tensor, theirs: Tensor, inputs: Tensor) -> None:
    """Two losses are equal, and so are their gradients; each in its own precision."""
    found, expected = (
        (loss, *torch.autograd.grad(loss, inputs, retain_graph=True)) for loss in (ours, theirs)
    )
    torch.testing.assert_close(found, expected, atol=1e-6, rtol=1e-6, check_dtype=False)


def tensors(specs: Specs) -> Tensors:
    """Eight rows as declared: floats at random, ids 0 or 1, masks of ragged rows, positions ascending."""
    generator = torch.Generator().manual_seed(1)
    made: Tensors = {}
    for name, spec in specs.items():
        shape = [SIZES[size] if isinstance(size, str) else size for size in spec.shape]
        if spec.dtype == torch.bool:
            made[name] = torch.arange(shape[1]) < torch.arange(shape[0])[:, None] % 4 + 3
        elif name == "mask_pos":
            made[name] = torch.arange(shape[0]) * SIZES["seq"]
        elif name == "group_rows":
            made[name] = torch.arange(8).view(shape)
        elif name == "relevance":
            made[name] = 9.0 * (torch.arange(2) == torch.arange(4)[:, None] % 2)
        elif name == "label_values":  # counts are real labels, too
            made[name] = torch.arange(8.0) % 4
        elif name in ("word_starts", "span_starts", "span_ends"):
            made[name] = torch.arange(shape[1]).expand(shape) + (name != "span_starts")
        elif spec.dtype == torch.long:
            made[name] = torch.randint(2, shape, generator=generator)
        else:
            made[name] = torch.randn(shape, generator=generator, dtype=spec.dtype)
    return made
