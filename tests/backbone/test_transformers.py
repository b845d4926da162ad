"""Encoders of the `transformers` library: packed equals every text alone, computed by the library itself."""

from __future__ import annotations

import json
import runpy
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from helpers.components import encoder_inputs
from helpers.library_encoders import write_config
from helpers.messages import raises
from palm.backbone.transformers import FAMILIES, PACKED, RUN, Transformers
from palm.core.errors import ConfigError

transformers = pytest.importorskip("transformers", minversion="5.9")

LENGTHS = (5, 29, 12, 17)


def built(folder: Path, family: str, seed: int = 0, **settings: Any) -> Transformers:
    if family not in transformers.CONFIG_MAPPING:
        pytest.skip(f"transformers {transformers.__version__} has no {family}")
    torch.manual_seed(seed)
    return Transformers(write_config(folder, family, **settings)).eval()


def batch_of(texts: list[Tensor]) -> dict[str, Tensor]:
    longest = max(len(text) for text in texts)
    ids = torch.full((len(texts), longest), 1)
    mask = torch.zeros(len(texts), longest, dtype=torch.bool)
    for row, text in enumerate(texts):
        ids[row, : len(text)] = text
        mask[row, : len(text)] = True
    return encoder_inputs(ids, mask)


def some_texts() -> list[Tensor]:
    generator = torch.Generator().manual_seed(3)
    return [torch.randint(5, 60, (length,), generator=generator) for length in LENGTHS]


def alone_in_the_library(backbone: Transformers, texts: list[Tensor]) -> tuple[Tensor, dict[str, Tensor]]:
    """Tokens and gradients of the library's `eager` attention, one text at a time."""
    config = transformers.AutoConfig.for_model(**config_of_backbone(backbone))
    judge = transformers.AutoModel.from_config(config, attn_implementation="eager").eval()
    weights = backbone.model.state_dict()
    judge.load_state_dict(weights, strict=False)
    tokens = torch.cat([judge(input_ids=text[None]).last_hidden_state[0] for text in texts])
    (tokens * probe(tokens)).sum().backward()
    return tokens.detach(), {n: p.grad for n, p in judge.named_parameters() if p.grad is not None}


def config_of_backbone(backbone: Transformers) -> dict[str, Any]:
    return json.loads(Path(backbone.settings["encoder_config_path"]).read_text(encoding="utf-8"))


def probe(tokens: Tensor) -> Tensor:
    return torch.randn(tokens.shape, generator=torch.Generator().manual_seed(5))


@pytest.mark.parametrize("family", sorted(RUN))
def test_tokens_and_gradients_equal_each_text_alone_in_the_library(family: str, tmp_path: Path) -> None:
    backbone, texts = built(tmp_path, family), some_texts()
    expected, gradients = alone_in_the_library(backbone, texts)

    batch = batch_of(texts)
    outputs = backbone(batch, ["encoder_outputs"])["encoder_outputs"]
    tokens = outputs[batch["input_mask"]]
    (tokens * probe(tokens)).sum().backward()

    assert backbone.is_packed == (family in PACKED)
    assert (outputs[~batch["input_mask"]] == 0).all()
    torch.testing.assert_close(tokens.detach(), expected, atol=1e-5, rtol=1e-5)
    ours = {n: p.grad for n, p in backbone.model.named_parameters() if p.grad is not None}
    assert ours.keys() == gradients.keys()
    for name, gradient in gradients.items():
        scale = max(1.0, float(gradient.abs().max()))
        torch.testing.assert_close(ours[name] / scale, gradient / scale, atol=1e-5, rtol=1e-5, msg=name)


@pytest.mark.parametrize("family", sorted(PACKED))
def test_other_words_in_one_text_leave_the_bits_of_another(family: str, tmp_path: Path) -> None:
    backbone, texts = built(tmp_path, family), some_texts()
    changed = [texts[0], (texts[1] + 7) % 50 + 5, *texts[2:]]
    with torch.no_grad():
        before, after = (backbone(batch_of(rows), ["encoder_outputs"]) for rows in (texts, changed))
    length = LENGTHS[0]
    assert torch.equal(before["encoder_outputs"][0, :length], after["encoder_outputs"][0, :length])
    assert not torch.equal(before["encoder_outputs"][1], after["encoder_outputs"][1])


def test_every_encoder_of_the_library_is_packed_padded_or_refused(tmp_path: Path) -> None:
    from transformers.models.auto.modeling_auto import MODEL_FOR_MASKED_LM_MAPPING_NAMES

    listed = [family for families in FAMILIES.values() for family in families.split()]
    assert len(listed) == len(set(listed))
    assert set(MODEL_FOR_MASKED_LM_MAPPING_NAMES) <= set(listed)
    reasons = {family: why for why, families in FAMILIES.items() for family in families.split()}
    for family in sorted(set(listed) - RUN):
        file = tmp_path / "config.json"
        file.write_text(json.dumps({"model_type": family}), encoding="utf-8")
        with raises(ConfigError, repr(family), reasons[family]):
            Transformers(file)


def test_the_tables_of_families_are_up_to_date() -> None:
    script = Path(__file__).resolve().parents[2] / "scripts" / "families_table.py"
    module = runpy.run_path(str(script))
    assert module["PAGE"].read_text(encoding="utf-8") == module["page"](), "run scripts/families_table.py"
