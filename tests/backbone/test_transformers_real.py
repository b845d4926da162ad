"""A real sentence encoder through the library's adapter, beside palm's own BERT with the same weights."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from helpers.shared import minilm
from palm.backbone import BERT, Backbone
from palm.backbone.transformers import Transformers
from palm.pretrained.loading import load_backbone, load_pretrain

pytest.importorskip("transformers", minversion="5.9")


def both(pooling: str) -> tuple[Backbone, Backbone]:
    own = load_backbone(minilm())
    assert isinstance(own, BERT)
    own = BERT(**{**own.settings, "pooling": pooling})
    library = Transformers(minilm() / "config.json", pooling=pooling)
    for backbone in (own, library):
        load_pretrain(backbone, minilm())
    return own.eval(), library.eval()


def batch() -> dict[str, Tensor]:
    generator = torch.Generator().manual_seed(4)
    lengths = torch.tensor([[31], [7], [18], [24]])
    mask = torch.arange(31) < lengths
    ids = torch.randint(1000, 20000, mask.shape, generator=generator) * mask
    segments = (torch.arange(31) * 2 > lengths).long() * mask
    positions = torch.arange(31).expand_as(ids) * mask
    return {"token_ids": ids, "segment_ids": segments, "position_ids": positions, "input_mask": mask}


@pytest.mark.parametrize("pooling", ["cls", "mean"])
def test_all_outputs_are_those_of_palms_own_encoder(pooling: str) -> None:
    own, library = both(pooling)
    with torch.no_grad():
        expected, found = own(batch()), library(batch())
    torch.testing.assert_close(found, expected, atol=1e-5, rtol=1e-5)
