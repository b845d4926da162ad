"""Embeddings as directories of sentence-transformers, and choices as models of transformers."""

from __future__ import annotations

import json
from collections.abc import Callable
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
SIZES = tiny.sizes(
    *(32, 2, 4), intermediate_size=64, vocab_size=40, max_position_embeddings=32, initializer_range=0.3
)
MODERN = Path(__file__).parents[1] / "helpers" / "tiny_modernbert.json"


ENCODERS: dict[str, Callable[[Path], Backbone]] = {
    "bert, cls": lambda _: BERT(**SIZES),
    "bert, mean": lambda _: BERT(**SIZES, pooling="mean"),
    "roberta, max": lambda _: RoBERTa(**SIZES, pooling="max", pad_token_id=0),
    "distilbert, cls": lambda _: DistilBERT(**SIZES),
    "transformers, mean": lambda folder: Transformers(modern(folder), pooling="mean"),
}


def modern(folder: Path) -> Path:
    """The configuration of an encoder of the library."""
    config = json.loads(MODERN.read_text(encoding="utf-8"))
    changed = config | {"max_position_embeddings": 32, "vocab_size": 40}
    (folder / "config.json").write_text(json.dumps(changed), encoding="utf-8")
    return folder / "config.json"


def saved(backbone: Backbone, folder: Path) -> InferenceModel:
    """A model of embeddings, saved in `folder / "model"`."""
    reader = EmbeddingReader(tiny.write_files(folder / "data") / "vocab.txt", 16)
    width = backbone.outputs_attr["sentence_embedding"].shape[1]
    model = InferenceModel("texts", reader, backbone, Embedding(width), precision="fp32")
    model.save(folder / "model")
    return model


@pytest.mark.parametrize("kind", ENCODERS)
def test_sentence_transformers_gives_the_same_vectors(kind: str, tmp_path: Path) -> None:
    library = pytest.importorskip("sentence_transformers")
    torch.manual_seed(0)
    model = saved(ENCODERS[kind](tmp_path), tmp_path)
    palm.export.to_hugging_face(tmp_path / "model", tmp_path / "hf")
    theirs = library.SentenceTransformer(str(tmp_path / "hf"), device="cpu", local_files_only=True)
    ours = np.array([record["embedding"] for record in model.predict(TEXTS)])
    np.testing.assert_allclose(theirs.encode(TEXTS), ours, atol=1e-5 if "transformers" in kind else 2e-6)
    assert np.linalg.norm(ours, axis=1) == pytest.approx(np.ones(3), abs=1e-6)
    assert directory_pooling(tmp_path / "hf") == kind.split(", ")[1]


def test_a_pooling_of_the_librarys_own_is_refused(tmp_path: Path) -> None:
    pytest.importorskip("transformers", reason="transformers is not installed (the extra `minilm`)")
    saved(Transformers(modern(tmp_path)), tmp_path)
    with pytest.raises(PalmError, match="pooling: first, mean or max"):
        palm.export.to_hugging_face(tmp_path / "model", tmp_path / "refused")
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
