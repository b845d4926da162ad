"""Encoders in Hugging Face's layout: class names, names of weights, keys of `config.json`, directories."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from types import MappingProxyType
from typing import Any

from torch import Tensor

from palm.backbone import BACKBONES, Backbone, DistilBERT
from palm.backbone.encoder import Encoder
from palm.backbone.transformers import Transformers
from palm.core.errors import StorageError
from palm.core.io import write_json
from palm.core.saved import save_tensors
from palm.pretrained.library import write_library_encoder
from palm.pretrained.names import LayoutName, from_ours


@dataclass(frozen=True)
class Family:
    """One architecture of `transformers`.

    Args:
        model_type: value in `config.json`, and prefix of the encoder's names in models with a head.
        classes: prefix of its class names.
        pooler: name of the pooler in its sequence classification models.
        layout: layout of the encoder's weights.
        keys: our setting -> its key in `config.json`, if they differ.
    """

    model_type: str
    classes: str
    pooler: str
    layout: LayoutName = "huggingface"
    keys: Mapping[str, str] = field(default_factory=dict)


FAMILIES = {
    "bert": Family("bert", "Bert", "bert.pooler.dense"),
    "ernie": Family("ernie", "Ernie", "ernie.pooler.dense", keys={"sent_type_vocab_size": "type_vocab_size"}),
    "roberta": Family("roberta", "Roberta", "classifier.dense"),
    "distilbert": Family(
        "distilbert",
        "DistilBert",
        "pre_classifier",
        "distilbert",
        {ours: theirs for theirs, ours in DistilBERT.aliases.items()}
        | {"classifier_dropout": "seq_classif_dropout"},
    ),
    "electra": Family("electra", "Electra", "classifier.dense"),
}
"""Our name of the encoder -> its family."""


def family_of(backbone: Backbone) -> Family:
    """Return the family of an encoder.

    Raises:
        StorageError: if `transformers` has no such encoder.
    """
    name = BACKBONES.name_of(type(backbone))
    if name not in FAMILIES:
        raise StorageError(f"Hugging Face's layout supports {', '.join(FAMILIES)}, not {name!r}")
    return FAMILIES[name]


def config_of(backbone: Backbone, model: str = "Model") -> dict[str, Any]:
    """Build the content of the encoder's `config.json`.

    Args:
        backbone: the encoder.
        model: suffix of the class name at Hugging Face.

    Raises:
        StorageError: if `transformers` has no such encoder.
    """
    family = family_of(backbone)
    assert isinstance(backbone, Encoder)
    settings = {**backbone.settings, "intermediate_size": backbone.inner_width}
    del settings["pooling"]
    if "embedding_size" in settings:
        settings["embedding_size"] = backbone.embeddings.word_table.shape[1]
        if family.model_type == "bert" and settings.pop("embedding_size") != backbone.settings["hidden_size"]:
            raise StorageError("transformers has no BERT with an embedding_size; ELECTRA has one")
    return {
        "architectures": [f"{family.classes}{model}"],
        "model_type": family.model_type,
        **{family.keys.get(name, name): value for name, value in settings.items()},
    }


def write_hugging_face(
    weights: Mapping[str, Tensor],
    backbone: Backbone,
    folder: Path,
    original: Mapping[str, Tensor] = MappingProxyType({}),
    **settings: Any,
) -> None:
    """Write `model.safetensors` and `config.json` as `transformers` does for an encoder without a head.

    Args:
        weights: tensors by our names; missing ones are omitted.
        backbone: the encoder, for its sizes.
        folder: an existing folder.
        original: tensors of a directory by its own names, for parts of a library encoder that palm does not
            use, such as a pooler that no classifier reads.
        settings: additional settings for `config.json` of palm's own encoders.

    Raises:
        StorageError: if `transformers` has no such encoder.
    """
    if isinstance(backbone, Transformers):
        write_library_encoder(weights, backbone, folder, original)
        return
    save_tensors(folder / "model.safetensors", from_ours(weights, family_of(backbone).layout))
    write_json(folder / "config.json", {**settings, **config_of(backbone)})
