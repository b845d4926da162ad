"""Token ids and sentence vectors of twelve public layouts are those of the libraries that wrote them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.nn import functional as F

from helpers.messages import raises
from helpers.public_layouts import LAYOUTS, without_prefixes
from palm.backbone import DistilBERT
from palm.core.errors import StorageError
from palm.pretrained.directory import settings_of_directory
from palm.pretrained.loading import load_backbone, load_pretrain, pretrained_directory
from palm.reader.tokenizer import Tokenizer, load_tokenizer

transformers: Any = pytest.importorskip("transformers")
library: Any = pytest.importorskip("sentence_transformers")

SIZES = (
    *("hidden_size", "num_hidden_layers", "num_attention_heads", "intermediate_size"),
    *("vocab_size", "max_position_embeddings"),
)
PAIRS = [
    ("Anna has a red boat, ich müßte", "what is 中国的首都?"),
    ("the [E1] old DOOR [/E1] 東京", "who"),
    ("naïve café  in", "red, green and (old) boats near the door of the new boat"),
]


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    made = {}
    for name, make in LAYOUTS.items():
        made[name] = tmp_path_factory.mktemp("layouts") / name
        make(made[name])
    return made


def tokenizer_of(folder: Path) -> Tokenizer:
    told = settings_of_directory(pretrained_directory(folder))
    return load_tokenizer(Path(told["vocab_path"]), told["do_lower_case"])


def features(folder: Path, texts: list[str]) -> dict[str, Tensor]:
    """What palm's encoder of a directory computes for texts, sentence vectors and all tokens."""
    backbone = load_backbone(folder)
    tokenizer = tokenizer_of(folder)
    ids = [tokenizer.row(ids) for ids in tokenizer.encode(texts)]
    longest = max(map(len, ids))
    tokens = torch.tensor([row + [tokenizer.pad_id] * (longest - len(row)) for row in ids])
    mask = torch.tensor([[k < len(row) for k in range(longest)] for row in ids])
    batch = {"token_ids": tokens, "input_mask": mask, "segment_ids": torch.zeros_like(tokens)}
    batch["position_ids"] = torch.arange(longest).expand(len(ids), -1)
    with torch.no_grad():
        return backbone(batch)


@pytest.mark.parametrize("name", LAYOUTS)
def test_token_ids_are_those_of_the_library(folders: dict[str, Path], name: str) -> None:
    place = folders[name]
    if (place / "modules.json").is_file():
        theirs = library.SentenceTransformer(str(place), device="cpu").tokenizer
    else:
        theirs = transformers.AutoTokenizer.from_pretrained(place)
    tokenizer = tokenizer_of(place)
    for a, b in PAIRS:
        ids_a, ids_b = tokenizer.encode([a, b])
        assert tokenizer.row(ids_a) == theirs(a, truncation=False, padding=False)["input_ids"]
        assert tokenizer.row(ids_a, ids_b) == theirs(a, b, truncation=False, padding=False)["input_ids"]


@pytest.mark.parametrize("name", [name for name in LAYOUTS if name != "distiluse"])
def test_vectors_are_those_of_the_library(folders: dict[str, Path], name: str, tmp_path: Path) -> None:
    place = folders[name]
    texts = [a for a, _ in PAIRS]
    ours = features(place, texts)
    if (place / "modules.json").is_file():
        model = library.SentenceTransformer(str(place), device="cpu")
        vectors = ours["sentence_embedding"]
        is_normalized = any(type(part).__name__ == "Normalize" for part in model)
        torch.testing.assert_close(
            F.normalize(vectors, dim=-1) if is_normalized else vectors,
            model.encode(texts, convert_to_tensor=True),
            atol=3e-6,
            rtol=0,
        )
        return
    if name == "compiled_electra":
        place = without_prefixes(place, tmp_path / "plain")
    encoded = transformers.AutoTokenizer.from_pretrained(place)(texts, padding=True, return_tensors="pt")
    with torch.no_grad():
        theirs = transformers.AutoModel.from_pretrained(place).eval()(**encoded)
    mask = encoded["attention_mask"].bool()
    torch.testing.assert_close(
        ours["encoder_outputs"][mask], theirs.last_hidden_state[mask], atol=3e-6, rtol=0
    )
    if name.startswith("bert"):
        torch.testing.assert_close(ours["sentence_embedding"], theirs.pooler_output, atol=3e-6, rtol=0)


def test_a_layer_that_palm_does_not_compute_is_refused_unless_another_pooling_is_set(
    folders: dict[str, Path],
) -> None:
    with raises(StorageError, "2_Dense", "set pooling"):
        load_backbone(folders["distiluse"])
    told = settings_of_directory(folders["distiluse"])
    assert told["pooling"] == "model"
    sizes = {name: told[name] for name in SIZES}
    encoder = DistilBERT(**sizes, pooling="mean")
    load_pretrain(encoder, folders["distiluse"])
    assert encoder.pooling == "mean"
