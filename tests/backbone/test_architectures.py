"""Every encoder computes what transformers computes, from every form of file that transformers writes."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from helpers.components import encoder_inputs
from helpers.tiny import sizes
from palm.backbone import RoBERTa
from palm.core.errors import ConfigError, WiringError
from palm.pretrained.directory import read_weights
from palm.pretrained.loading import load_backbone, load_pretrain
from palm.pretrained.names import from_ours, to_ours

transformers: Any = pytest.importorskip("transformers")

SIZES = sizes(16, 2, 4, vocab_size=50, intermediate_size=24, max_position_embeddings=20)
DISTILBERT = {"vocab_size": 50, "dim": 16, "n_layers": 2, "n_heads": 4, "hidden_dim": 24}

MODELS: dict[str, tuple[str, str, dict[str, Any]]] = {
    "bert": ("BertConfig", "BertModel", SIZES),
    "ernie": ("ErnieConfig", "ErnieModel", {**SIZES, "use_task_id": True, "type_vocab_size": 4}),
    "ernie without tasks": ("ErnieConfig", "ErnieModel", {**SIZES, "use_task_id": False}),
    "roberta": ("RobertaConfig", "RobertaModel", {**SIZES, "type_vocab_size": 1, "layer_norm_eps": 1e-5}),
    "xlm-roberta": ("XLMRobertaConfig", "XLMRobertaModel", {**SIZES, "type_vocab_size": 1}),
    "distilbert": ("DistilBertConfig", "DistilBertModel", {**DISTILBERT, "max_position_embeddings": 20}),
    "electra": ("ElectraConfig", "ElectraModel", {**SIZES, "embedding_size": 8}),
    "electra of one width": ("ElectraConfig", "ElectraModel", {**SIZES, "embedding_size": 16}),
}
NO_POOLER = {"distilbert", "electra", "electra of one width"}

HEADS = {
    "bert": "BertForPreTraining",
    "ernie": "ErnieForTokenClassification",
    "roberta": "RobertaForMaskedLM",
    "xlm-roberta": "XLMRobertaForQuestionAnswering",
    "distilbert": "DistilBertForMaskedLM",
    "electra": "ElectraForPreTraining",
}
"""What writes an encoder together with a head, under a prefix."""

every_model = pytest.mark.parametrize("name", MODELS)
every_head = pytest.mark.parametrize("name", HEADS)


def model_of(name: str, head: str | None = None) -> Any:
    """A random model of transformers, far enough from its start that every parameter matters."""
    config, encoder, sizes = MODELS[name]
    torch.manual_seed(3)
    model = getattr(transformers, head or encoder)(getattr(transformers, config)(**sizes)).eval()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(torch.randn_like(parameter) * 0.2)
    return model


def inputs_of(names: Any) -> dict[str, Tensor]:
    """A batch of rows of 7, 4 and 1 tokens."""
    torch.manual_seed(4)
    lengths = torch.tensor([7, 4, 1])
    mask = torch.arange(7) < lengths[:, None]
    segments = (torch.arange(7) > 2).long().repeat(3, 1)
    ids, tasks = torch.randint(5, 50, mask.shape), torch.full(mask.shape, 2)
    inputs = encoder_inputs(ids, mask, segment_ids=segments, task_ids=tasks)
    inputs["token_ids"][~mask] = 1  # the padding of RoBERTa, which reads positions from it
    return {name: value for name, value in inputs.items() if name in names}


def theirs_of(model: Any, inputs: dict[str, Tensor]) -> Any:
    own = {"segment_ids": "token_type_ids", "task_ids": "task_type_ids"}
    extra = {own[name]: value for name, value in inputs.items() if name in own}
    return model(inputs["token_ids"], attention_mask=inputs["input_mask"].long(), **extra)


def assert_equal(backbone: Any, model: Any, has_pooler: bool) -> None:
    inputs = inputs_of(backbone.inputs_attr)
    real = inputs["input_mask"]
    with torch.no_grad():
        outputs, theirs = backbone(inputs), theirs_of(model, inputs)
    torch.testing.assert_close(
        outputs["encoder_outputs"][real], theirs.last_hidden_state[real], atol=1e-5, rtol=0
    )
    if has_pooler:
        torch.testing.assert_close(outputs["sentence_embedding"], theirs.pooler_output, atol=1e-5, rtol=0)


@every_model
def test_an_encoder_equals_that_of_transformers(tmp_path: Path, name: str) -> None:
    model = model_of(name)
    model.save_pretrained(tmp_path)
    assert_equal(load_backbone(tmp_path), model, name not in NO_POOLER)


@every_model
def test_gradients_equal_those_of_transformers(tmp_path: Path, name: str) -> None:
    model = model_of(name)
    model.save_pretrained(tmp_path)
    backbone = load_backbone(tmp_path)
    inputs = inputs_of(backbone.inputs_attr)
    real = inputs["input_mask"]
    backbone(inputs)["encoder_outputs"][real].pow(2).sum().backward()
    theirs_of(model, inputs).last_hidden_state[real].pow(2).sum().backward()
    theirs = to_ours({name: value.grad for name, value in model.named_parameters() if value.grad is not None})
    ours = {name: value.grad for name, value in backbone.named_parameters() if value.grad is not None}
    # transformers keeps the word vector of padding from moving, and its rows are attended by nobody.
    torch.testing.assert_close(ours, dict(theirs.weights), atol=1e-3, rtol=1e-4)


@every_head
@pytest.mark.parametrize("form", ["safetensors", "shards", "bin shards"])
def test_every_form_of_file_loads_and_heads_are_left_out(tmp_path: Path, name: str, form: str) -> None:
    model = model_of(name, HEADS[name])
    whole, shards = tmp_path / "whole", tmp_path / "shards"
    model.save_pretrained(whole)
    model.save_pretrained(shards, max_shard_size="4KB")
    folder = {"safetensors": whole, "shards": shards}.get(form) or as_bin(
        tmp_path / "bin", shards if form == "bin shards" else whole
    )
    backbone = load_backbone(folder)
    encoder = getattr(model, model.base_model_prefix)
    assert_equal(backbone, encoder, has_pooler=False)
    report = load_pretrain(backbone, folder)
    assert report.left_out
    assert report.unused == ()
    assert set(report.missing) <= {"pooler.weight", "pooler.bias"}
    assert len(report.loaded) + len(report.missing) == len(backbone.state_dict())


def as_bin(folder: Path, source: Path) -> Path:
    """A directory of safetensors as one of torch's own files."""
    folder.mkdir()
    shutil.copy(source / "config.json", folder)
    for file in source.glob("model*.safetensors"):
        name = file.name.replace("model", "pytorch_model", 1).replace(".safetensors", ".bin")
        torch.save(read_weights(file), folder / name)
    index = source / "model.safetensors.index.json"
    if index.is_file():
        text = index.read_text(encoding="utf-8").replace(".safetensors", ".bin")
        text = text.replace('"model-', '"pytorch_model-')
        (folder / "pytorch_model.bin.index.json").write_text(text, encoding="utf-8")
    return folder


@pytest.mark.parametrize(
    ("name", "head"),
    [
        ("roberta", "RobertaForSequenceClassification"),
        ("distilbert", "DistilBertForSequenceClassification"),
        ("electra", "ElectraForSequenceClassification"),
    ],
)
def test_the_layer_before_a_classifier_is_the_pooler(tmp_path: Path, name: str, head: str) -> None:
    model = model_of(name, head)
    model.save_pretrained(tmp_path)
    backbone = load_backbone(tmp_path)
    inputs = inputs_of(backbone.inputs_attr)
    last = model.classifier if name == "distilbert" else model.classifier.out_proj
    with torch.no_grad():
        logits = last(backbone(inputs)["sentence_embedding"])
        torch.testing.assert_close(logits, theirs_of(model, inputs).logits, atol=1e-5, rtol=0)


@every_model
@pytest.mark.parametrize("layout", ["huggingface", "distilbert", "paddlenlp"])
def test_names_go_there_and_back_without_loss(tmp_path: Path, name: str, layout: Any) -> None:
    model_of(name).save_pretrained(tmp_path)
    weights = load_backbone(tmp_path).state_dict()
    if layout == "distilbert":
        weights = {ours: value for ours, value in weights.items() if "segment" not in ours}
        weights = {ours: value for ours, value in weights.items() if "task" not in ours}
        weights = {ours: value for ours, value in weights.items() if "projection" not in ours}
    theirs = from_ours(weights, layout)
    assert not theirs.keys() & weights.keys()
    back = to_ours(theirs)
    assert back.layout == layout
    assert back.left_out == back.unused == []
    assert back.weights.keys() == weights.keys()
    assert all(torch.equal(back.weights[ours], weights[ours]) for ours in weights)


def test_positions_of_roberta_end_where_its_table_ends() -> None:
    backbone = RoBERTa(16, 1, 2, 50, 9).eval()
    assert backbone.max_tokens == 7
    names = ("token_ids", "position_ids", "input_mask")
    assert set(backbone.inputs_attr) == set(names)
    ids = torch.arange(7)[None]
    assert backbone(dict(zip(names, (ids, ids, ids >= 0), strict=True)))["encoder_outputs"].isfinite().all()
    with pytest.raises(WiringError, match=r"position_ids: 7 .*0\.\.6"):
        backbone(dict(zip(names, (ids, ids + 1, ids >= 0), strict=True)))
    with pytest.raises(ConfigError, match="pad_token_id: 8 "):
        RoBERTa(16, 1, 2, 50, 9, pad_token_id=8)
