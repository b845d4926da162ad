"""Tiny encoders of every family that the `transformers` library can train masked words with."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch

from helpers import tiny

SIZES: dict[str, Any] = {
    "vocab_size": 60,
    "hidden_size": 32,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "intermediate_size": 48,
    "max_position_embeddings": 64,
    "embedding_size": 16,
    "pad_token_id": 1,
    "bos_token_id": 0,
    "cls_token_id": 0,
    "eos_token_id": 2,
    "sep_token_id": 2,
}
"""Under the names that most families have; a family's own spellings are below."""

OWN: dict[str, dict[str, Any]] = {
    "modernbert": {"local_attention": 16, "global_attn_every_n_layers": 2},
    "eurobert": {"num_key_value_heads": 2},
    "mobilebert": {"true_hidden_size": 32, "intra_bottleneck_size": 32, "embedding_size": 32},
    "deberta-v2": {"relative_attention": True, "pos_att_type": ["p2c", "c2p"]},
    "roc_bert": {"pronunciation_vocab_size": 60, "shape_vocab_size": 60},
    "luke": {"entity_vocab_size": 20, "entity_emb_size": 16},
    "rembert": {"input_embedding_size": 16, "output_embedding_size": 16},
    "big_bird": {"attention_type": "original_full"},
    "squeezebert": {"embedding_size": 32, "q_groups": 2, "k_groups": 2, "v_groups": 2},
}


def config_of(family: str, **settings: Any) -> dict[str, Any]:
    """The content of a tiny `config.json` of a family."""
    from transformers import AutoConfig

    usual = AutoConfig.for_model(family)
    known = {name: value for name, value in SIZES.items() if hasattr(usual, name)}
    return {"model_type": family, **known, **OWN.get(family, {}), **settings}


def write_config(folder: Path, family: str, **settings: Any) -> Path:
    """The same as a file."""
    folder.mkdir(parents=True, exist_ok=True)
    file = folder / "config.json"
    file.write_text(json.dumps(config_of(family, **settings)), encoding="utf-8")
    return file


def model_directory(folder: Path, family: str, head: str = "ForMaskedLM", **settings: Any) -> Path:
    """Weights, `config.json` and `tokenizer.json` as the library saves them, with the tiny vocabulary."""
    import transformers

    words = tiny.write_files(folder / "data").joinpath("vocab.txt").read_text("utf-8").split("\n")[:-1]
    tokenizer = transformers.BertTokenizerFast(vocab={word: number for number, word in enumerate(words)})
    special = {
        name: words.index(token) for name, token in (("pad_token_id", "[PAD]"), ("sep_token_id", "[SEP]"))
    }
    content = config_of(family, vocab_size=len(words), **special, **settings)
    torch.manual_seed(1)
    config = transformers.AutoConfig.for_model(**content)
    model = getattr(transformers, f"AutoModel{head}").from_config(config)
    model.save_pretrained(folder / family)
    tokenizer.save_pretrained(folder / family)
    return folder / family


def refuse_connections(patch: pytest.MonkeyPatch) -> None:
    def connect(*_: object) -> None:
        raise AssertionError("a connection was tried")

    patch.setattr("socket.socket.connect", connect)


def run_of(folder: Path, model: Path, *tasks: str, **settings: Any) -> dict[str, Any]:
    config = tiny.config(folder / "data", *tasks, backbone="auto", pretrain_path=str(model), **settings)
    for name in ("backbone_config_path", "vocab_path"):
        del config[name]
    return config | {"save_path": str(folder / "out")}
