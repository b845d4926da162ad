"""Positions, shared attention heads, rates, averages and tasks' own layers on the library's encoders."""

from __future__ import annotations

import copy
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

import palm
import palm.export
from helpers.library_encoders import model_directory, run_of, write_config
from palm.backbone.transformers import Transformers
from palm.controller.controller import Controller
from palm.paradigm import MaskLM

transformers = pytest.importorskip("transformers", minversion="5.9")


def inputs_of(ids: Tensor, mask: Tensor) -> dict[str, Tensor]:
    zeros = torch.zeros_like(ids)
    return {"token_ids": ids, "segment_ids": zeros, "position_ids": zeros, "input_mask": mask}


def judge_of(backbone: Transformers) -> Any:
    """The library's own model with the same weights."""
    config = copy.deepcopy(backbone.config)
    judge = transformers.AutoModel.from_config(config, attn_implementation="eager").eval()
    judge.load_state_dict(backbone.model.state_dict(), strict=False)
    return judge


@pytest.mark.parametrize("pad", [0, 1, 3])
@pytest.mark.parametrize("family", ["roberta", "xlm-roberta"])
def test_explicit_positions_are_those_that_the_library_counts_from_its_padding(
    family: str, pad: int, tmp_path: Path
) -> None:
    backbone = Transformers(write_config(tmp_path, family, pad_token_id=pad)).eval()
    judge = judge_of(backbone)
    ids = torch.arange(5, 25).view(2, 10)
    lengths = torch.tensor([[10], [6]])
    mask = torch.arange(10) < lengths
    with torch.no_grad():
        found = backbone(inputs_of(ids.masked_fill(~mask, pad), mask), ["encoder_outputs"])["encoder_outputs"]
        none_given = torch.cat(
            [judge(ids[row : row + 1, :n]).last_hidden_state[0] for row, n in ((0, 10), (1, 6))]
        )
        places = pad + 1 + torch.arange(10)[None]
        given = judge(ids[:1], position_ids=places).last_hidden_state[0]
        others = judge(ids[:1], position_ids=places - 1).last_hidden_state[0]
    torch.testing.assert_close(found[mask], none_given, atol=1e-5, rtol=1e-5)
    torch.testing.assert_close(given, none_given[:10], atol=1e-6, rtol=1e-6)
    assert (others - given).abs().max() > 1e-3


def test_four_query_heads_read_two_heads_of_keys(tmp_path: Path) -> None:
    backbone = Transformers(
        write_config(tmp_path, "eurobert", num_attention_heads=4, num_key_value_heads=2)
    ).eval()
    weights = backbone.model.state_dict()
    assert weights["layers.0.self_attn.q_proj.weight"].shape == (32, 32)
    assert weights["layers.0.self_attn.k_proj.weight"].shape == (16, 32)
    judge = judge_of(backbone)
    ids = torch.arange(5, 25).view(2, 10)
    mask = torch.arange(10) < torch.tensor([[10], [6]])
    with torch.no_grad():
        found = backbone(inputs_of(ids, mask), ["encoder_outputs"])["encoder_outputs"][mask]
        alone = torch.cat(
            [judge(ids[row : row + 1, :n]).last_hidden_state[0] for row, n in ((0, 10), (1, 6))]
        )
    torch.testing.assert_close(found, alone, atol=1e-5, rtol=1e-5)


def test_rates_fall_from_layer_to_layer(tmp_path: Path) -> None:
    model = model_directory(tmp_path, "modernbert")
    rates = {"optimizer": "adamwdl", "layerwise_decay": 0.5, "learning_rate": 8e-3, "warmup_proportion": 0}
    training = Controller(run_of(tmp_path, model, "cls", **rates), argv=[]).training()
    groups = training.optimizer.param_groups
    by_parameter = {id(p): group["lr"] for group in groups for p in group["params"]}
    found = {name: by_parameter[id(p)] for name, p in training.model.named_parameters()}
    assert found["backbone.model.embeddings.tok_embeddings.weight"] == pytest.approx(1e-3)
    for layer, rate in enumerate((2e-3, 4e-3, 8e-3)):
        assert found[f"backbone.model.layers.{layer}.mlp.Wi.weight"] == pytest.approx(rate)
    assert found["backbone.model.final_norm.weight"] == pytest.approx(8e-3)
    assert found["heads.@cls.out.weight"] == pytest.approx(8e-3)


@pytest.mark.parametrize(
    ("family", "decoder"),
    [("modernbert", "decoder"), ("roberta", "lm_head.decoder"), ("bert", "cls.predictions.decoder")],
)
def test_the_decoder_of_masked_words_is_the_word_table_before_and_after(
    family: str, decoder: str, tmp_path: Path
) -> None:
    model = model_directory(tmp_path, family)
    config = run_of(tmp_path, model, "mlm", max_steps=2, num_epochs=1)
    config["backbone"] = "transformers"
    config["backbone_config_path"] = str(model / "config.json")
    config["vocab_path"] = str(model / "tokenizer.json")
    training = Controller(config, argv=[]).training()
    head = training.model.heads["@mlm"]
    assert isinstance(head, MaskLM)
    rows = training.model.backbone.model.get_input_embeddings().weight
    assert [name for name, p in head.named_parameters() if p.shape == rows.shape] == []
    Controller(config, argv=[]).train()
    saved = tmp_path / "out" / "mlm" / "infer_model"
    palm.export.to_hugging_face(saved, tmp_path / "hf")
    exported = transformers.AutoModelForMaskedLM.from_pretrained(tmp_path / "hf")
    table = exported.get_input_embeddings().weight
    assert exported.get_submodule(decoder).weight.data_ptr() == table.data_ptr()
    loaded = palm.load_model(saved).backbone
    assert isinstance(loaded, Transformers)
    assert torch.equal(loaded.model.get_input_embeddings().weight, table)


def test_a_decoder_that_is_not_tied_is_loaded_trained_and_exported(tmp_path: Path) -> None:
    model = model_directory(tmp_path, "eurobert")
    before = transformers.AutoModelForMaskedLM.from_pretrained(model).lm_head.weight.detach().clone()
    Controller(run_of(tmp_path, model, "mlm", max_steps=2, num_epochs=1), argv=[]).train()
    saved = tmp_path / "out" / "mlm" / "infer_model"
    palm.export.to_hugging_face(saved, tmp_path / "hf")
    exported = transformers.AutoModelForMaskedLM.from_pretrained(tmp_path / "hf")
    change = (exported.lm_head.weight - before).abs().max()
    assert 0 < change < 0.02
    head: Any = palm.load_model(saved).head
    assert torch.equal(exported.lm_head.weight, head.above.table)
    assert exported.lm_head.weight.data_ptr() != exported.get_input_embeddings().weight.data_ptr()
