"""Embeddings as directories of sentence-transformers, and choices as models of transformers."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
import torch

import palm
from helpers import tiny
from palm.backbone import BERT, Backbone, DistilBERT, RoBERTa
from palm.backbone.transformers import Transformers
from palm.core.errors import PalmError
from palm.paradigm import Embedding, MultipleChoice
from palm.predict.inference import InferenceModel
from palm.pretrained.directory import directory_pooling
from palm.reader import EmbeddingReader, MultipleChoiceReader

TEXTS = ["anna has a red door", "who owns the boat ? it is very old and near", "green"]
SIZES = {
    **{"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4, "intermediate_size": 64},
    **{"vocab_size": 40, "max_position_embeddings": 32, "initializer_range": 0.3},
}
MODERN = Path(__file__).parents[1] / "helpers" / "tiny_modernbert.json"


def encoders() -> dict[str, Backbone]:
    torch.manual_seed(0)
    return {
        "bert, cls": BERT(**SIZES),
        "bert, mean": BERT(**SIZES, pooling="mean"),
        "roberta, max": RoBERTa(**SIZES, pooling="max", pad_token_id=0),
        "distilbert, cls": DistilBERT(**SIZES),
    }


@pytest.mark.parametrize("kind", encoders())
def test_sentence_transformers_gives_the_same_vectors(kind: str, tmp_path: Path) -> None:
    library = pytest.importorskip("sentence_transformers")
    folder = tiny.write_files(tmp_path / "data")
    reader = EmbeddingReader(folder / "vocab.txt", 16)
    model = InferenceModel("texts", reader, encoders()[kind], Embedding(32), precision="fp32")
    model.save(tmp_path / "model")
    palm.export.to_hugging_face(tmp_path / "model", tmp_path / "hf")
    theirs = library.SentenceTransformer(str(tmp_path / "hf"), device="cpu", local_files_only=True)
    ours = np.array([record["embedding"] for record in model.predict(TEXTS)])
    np.testing.assert_allclose(theirs.encode(TEXTS), ours, atol=2e-6)
    assert np.linalg.norm(ours, axis=1) == pytest.approx(np.ones(3), abs=1e-6)
    assert directory_pooling(tmp_path / "hf") == kind.split(", ")[1]


def test_an_encoder_of_the_library_is_pooled_by_mean(tmp_path: Path) -> None:
    library = pytest.importorskip("sentence_transformers")
    folder = tiny.write_files(tmp_path / "data")
    reader = EmbeddingReader(folder / "vocab.txt", 16)
    config = json.loads(MODERN.read_text(encoding="utf-8"))
    longer = tmp_path / "config.json"
    longer.write_text(
        json.dumps(config | {"max_position_embeddings": 32, "vocab_size": 40}), encoding="utf-8"
    )
    torch.manual_seed(0)
    backbone = Transformers(longer, pooling="mean")
    model = InferenceModel(
        "texts", reader, backbone, Embedding(backbone.sizes()["hidden_size"]), precision="fp32"
    )
    model.save(tmp_path / "model")
    palm.export.to_hugging_face(tmp_path / "model", tmp_path / "hf")
    theirs = library.SentenceTransformer(str(tmp_path / "hf"), device="cpu", local_files_only=True)
    ours = np.array([record["embedding"] for record in model.predict(TEXTS)])
    np.testing.assert_allclose(theirs.encode(TEXTS), ours, atol=1e-5)
    first = InferenceModel("texts", reader, Transformers(longer), Embedding(backbone.sizes()["hidden_size"]))
    first.save(tmp_path / "cls")
    with pytest.raises(PalmError, match="pooling: first, mean or max"):
        palm.export.to_hugging_face(tmp_path / "cls", tmp_path / "refused")
    assert not (tmp_path / "refused").exists()


def test_choices_have_the_logits_of_transformers(tmp_path: Path) -> None:
    transformers = pytest.importorskip("transformers")
    folder = tiny.write_files(tmp_path / "data")
    reader = MultipleChoiceReader(folder / "vocab.txt", 16)
    torch.manual_seed(0)
    model = InferenceModel("choices", reader, BERT(**SIZES), MultipleChoice(32), precision="fp32")
    model.save(tmp_path / "model")
    palm.export.to_hugging_face(tmp_path / "model", tmp_path / "hf")
    theirs = transformers.AutoModelForMultipleChoice.from_pretrained(tmp_path / "hf").eval()
    tokenizer = transformers.AutoTokenizer.from_pretrained(tmp_path / "hf")
    choices = ["anna", "bert has it", "the sun"]
    inputs = tokenizer(
        [TEXTS[1]] * 3, choices, return_tensors="pt", padding=True, truncation="longest_first", max_length=16
    )
    with torch.no_grad():
        logits = theirs(**{name: value[None] for name, value in inputs.items()}).logits[0]
    (record,) = model.predict([(TEXTS[1], choices)])
    assert record["logits"] == pytest.approx(logits.tolist(), abs=1e-5)
