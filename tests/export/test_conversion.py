"""Encoders converted between layouts keep every bit, and compute the same in transformers."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

import palm
from helpers.components import encoder_inputs
from helpers.equal import differing
from helpers.golden_forward import FOLDER
from helpers.shared import minilm
from helpers.tiny import sizes
from palm.backbone import BERT, ELECTRA, ERNIE, Backbone, DistilBERT, RoBERTa
from palm.cli import main
from palm.pretrained.directory import read_weights
from palm.pretrained.families import config_of, family_of
from palm.pretrained.loading import load_backbone
from palm.pretrained.names import from_ours, to_ours

SIZES = sizes(16, 2, 2, vocab_size=30, max_position_embeddings=12, initializer_range=0.2)
BACKBONES: dict[str, Any] = {
    "bert": lambda: BERT(**SIZES, intermediate_size=24, hidden_act="relu", layer_norm_eps=1e-6),
    "ernie": lambda: ERNIE(**SIZES, sent_type_vocab_size=4),
    "roberta": lambda: RoBERTa(**SIZES),
    "distilbert": lambda: DistilBERT(**SIZES),
    "electra": lambda: ELECTRA(**SIZES, embedding_size=8),
}
VOCABULARY = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "hello", "world", "##s"]


def hugging_face(folder: Path, backbone: Backbone, **extra: Tensor) -> Path:
    """A directory as transformers writes it, with a vocabulary."""
    folder.mkdir()
    weights = from_ours(backbone.state_dict(), family_of(backbone).layout)
    weights = {name: value.contiguous() for name, value in weights.items()}
    save_file({**weights, **extra}, folder / "model.safetensors")
    (folder / "config.json").write_text(json.dumps(config_of(backbone)), encoding="utf-8")
    (folder / "vocab.txt").write_text("\n".join(VOCABULARY) + "\n", encoding="utf-8")
    return folder


@pytest.mark.parametrize("kind", BACKBONES)
def test_there_and_back_changes_no_bit(kind: str, tmp_path: Path) -> None:
    source = hugging_face(tmp_path / "source", BACKBONES[kind]())
    palm.convert(source, tmp_path / "theirs")
    before = load_file(source / "model.safetensors")
    assert differing(load_file(tmp_path / "theirs" / "model.safetensors"), before) == []
    assert load_backbone(tmp_path / "theirs").settings == load_backbone(source).settings
    assert (tmp_path / "theirs" / "vocab.txt").read_bytes() == (source / "vocab.txt").read_bytes()
    assert (
        palm.pretrained.directory.read_directory(tmp_path / "theirs").vocab_path
        == tmp_path / "theirs" / "tokenizer.json"
    )


@pytest.mark.parametrize("kind", BACKBONES)
def test_transformers_computes_the_same(kind: str, tmp_path: Path) -> None:
    transformers = pytest.importorskip("transformers")
    source = hugging_face(tmp_path / "source", BACKBONES[kind]())
    palm.convert(source, tmp_path / "hf")
    backbone = load_backbone(source)
    theirs = transformers.AutoModel.from_pretrained(tmp_path / "hf").eval()
    assert type(theirs).__name__ == f"{family_of(backbone).classes}Model"
    ids = torch.tensor([[2, 5, 6, 7, 3], [2, 6, 3, 0, 0]])
    mask = torch.tensor([[1, 1, 1, 1, 1], [1, 1, 1, 0, 0]])
    segments = torch.tensor([[0, 0, 1, 1, 1], [0, 1, 1, 0, 0]])
    inputs = encoder_inputs(ids, mask.bool(), segment_ids=segments, task_ids=torch.zeros_like(ids))
    segments = {"token_type_ids": inputs["segment_ids"]} if "segment_ids" in backbone.inputs_attr else {}
    with torch.no_grad():
        expected = backbone(inputs)["encoder_outputs"]
        given = theirs(ids, attention_mask=mask, **segments).last_hidden_state
    torch.testing.assert_close(given[mask.bool()], expected[mask.bool()], atol=1e-5, rtol=0)


@pytest.mark.parametrize("kind", ["bert", "ernie"])
def test_paddlepalms_params_become_a_directory_of_hugging_face(kind: str, tmp_path: Path) -> None:
    assert main(["convert", str(FOLDER / f"pretrain_{kind}"), "--output", str(tmp_path / "hf")]) == 0
    given = to_ours(read_weights(FOLDER / f"pretrain_{kind}")).weights
    written = to_ours(read_weights(tmp_path / "hf"))
    assert written.layout == "huggingface"
    assert differing(written.weights, given) == []
    assert json.loads((tmp_path / "hf" / "config.json").read_text(encoding="utf-8"))["model_type"] == kind


def test_a_real_bert_is_the_same_after_conversion(tmp_path: Path) -> None:
    transformers = pytest.importorskip("transformers")
    palm.convert(minilm(), tmp_path / "hf")
    tokenizer = transformers.AutoTokenizer.from_pretrained(tmp_path / "hf")
    theirs = transformers.AutoTokenizer.from_pretrained(minilm())
    text = "Naïve cafés in [MASK], 1863!"
    assert tokenizer(text)["input_ids"] == theirs(text)["input_ids"]
    assert tokenizer.model_max_length == 512
    before, after = read_weights(minilm()), read_weights(tmp_path / "hf")
    assert before.keys() - after.keys() == {"embeddings.position_ids"}
    assert all(torch.equal(before[name], after[name]) for name in after)


def test_a_folder_of_somebody_else_is_refused_with_the_remedy(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "proj").mkdir()
    (tmp_path / "other").mkdir()
    (tmp_path / "other" / "thesis.tex").write_text("mine", encoding="utf-8")
    (tmp_path / "file").write_text("mine", encoding="utf-8")
    monkeypatch.chdir(tmp_path / "proj")
    for folder, told in (
        (tmp_path / "other", "(thesis.tex)"),
        (".", "'.' is an existing folder"),
        ("/", "'/' is an existing folder"),
        (tmp_path / "file", "is a file; give the path of a new folder"),
    ):
        assert main(["convert", "unread", "--output", str(folder), "--overwrite"]) == 2
        assert told in capsys.readouterr().err
    assert (tmp_path / "other" / "thesis.tex").read_text(encoding="utf-8") == "mine"
