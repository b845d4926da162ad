"""A real sentence encoder through the library's adapter, beside palm's own BERT with the same weights."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

import palm
from helpers import tiny
from helpers.shared import minilm
from palm import Controller
from palm.backbone import BERT, Backbone
from palm.backbone.transformers import Transformers
from palm.pretrained import load_backbone, load_pretrain

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
    return {
        "token_ids": ids,
        "segment_ids": segments,
        "position_ids": torch.arange(31).expand_as(ids) * mask,
        "input_mask": mask,
    }


@pytest.mark.parametrize("pooling", ["cls", "mean"])
def test_all_outputs_are_those_of_palms_own_encoder(pooling: str) -> None:
    own, library = both(pooling)
    with torch.no_grad():
        expected, found = own(batch()), library(batch())
    assert found.keys() == expected.keys()
    for name, value in expected.items():
        torch.testing.assert_close(found[name], value, atol=1e-5, rtol=1e-5, msg=name)


def test_one_step_of_training_moves_the_weights_alike() -> None:
    tables = []
    for backbone in both("cls"):
        optimizer = torch.optim.SGD(backbone.parameters(), lr=0.1)
        outputs = backbone(batch(), ["encoder_outputs", "sentence_embedding"])
        loss = outputs["encoder_outputs"].square().mean() + outputs["sentence_embedding"].sum()
        loss.backward()
        optimizer.step()
        with torch.no_grad():
            tables.append((loss.detach(), backbone(batch())))
    torch.testing.assert_close(tables[0][0], tables[1][0], atol=1e-5, rtol=1e-5)
    for name, value in tables[0][1].items():
        torch.testing.assert_close(tables[1][1][name], value, atol=1e-5, rtol=1e-5, msg=name)


def test_a_run_on_the_real_encoder_learns_and_predicts(tmp_path: Path) -> None:
    data = tiny.write_files(tmp_path / "data")
    config: dict[str, Any] = tiny.config(data, "cls", num_epochs=3, pooling="model", max_seq_len=16)
    config |= {
        "backbone": "transformers",
        "backbone_config_path": str(minilm() / "config.json"),
        "vocab_path": str(minilm() / "vocab.txt"),
        "do_lower_case": True,
        "pretrain_path": str(minilm()),
        "learning_rate": 3e-4,
        "save_path": str(tmp_path / "out"),
    }
    result = Controller(config, argv=[]).train()
    assert result.steps == {"cls": 30}
    model = palm.load_model(tmp_path / "out" / "cls" / "infer_model", precision="fp32")
    assert model.backbone.settings["pooling"] == "mean"
    rows = [line.split("\t") for line in (data / "cls.tsv").read_text(encoding="utf-8").splitlines()[1:]]
    labels = [str(row["label"]) for row in model.predict([text for _, text, *_ in rows])]
    right = sum(label == found for (label, *_), found in zip(rows, labels, strict=True))
    assert right > len(rows) * 0.8  # 40 texts, 4 labels
