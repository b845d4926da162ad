"""Encoders as Hugging Face's library `transformers` has them: classes, names of weights, `config.json`."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from types import MappingProxyType
from typing import Any

from torch import Tensor

from palm.backbone import BACKBONES, Backbone, DistilBERT
from palm.backbone.encoder import Encoder
from palm.backbone.transformers import Transformers, library, read_encoder_config
from palm.core.errors import StorageError
from palm.core.io import write_json
from palm.core.saved import save_tensors
from palm.pretrained.names import LayoutName, Renamed, from_ours


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


# The library's own encoders

ABOVE = "sentence.layers."
"""Prefix of the names of the layers between the first token and a classifier's last layer."""

IRRELEVANT = (
    "_name_or_path architectures dtype finetuning_task id2label initializer_range label2id problem_type"
    " torch_dtype transformers_version use_cache"
)
"""Settings of the library that do not affect an encoder's computation."""


def renamed_for(backbone: Transformers, given: Renamed) -> Renamed:
    """Rename the tensors of a file, saved with or without a head, to the encoder's parameters.

    Raises:
        StorageError: if the shape of a tensor differs from the configuration.
    """
    own = {name.removeprefix("backbone."): value for name, value in given.original.items()}
    # Files saved by palm have our names, including layers above the first token unknown to the library.
    if own.keys() >= backbone.state_dict().keys():
        heads = [name for name in own if name not in backbone.state_dict()]
        return Renamed("palm", {n: v for n, v in own.items() if n not in heads}, heads, [], given.original)
    options = {"attn_implementation": backbone.config._attn_implementation, "output_loading_info": True}
    try:
        with quiet_library():
            model, found = type(backbone.model).from_pretrained(
                None, config=backbone.config, state_dict=dict(given.original), **options
            )
    except RuntimeError as error:
        raise StorageError(f"the weights do not fit the encoder: {str(error).strip()}") from error
    loaded = {f"model.{name}": value for name, value in model.state_dict().items()}
    above = _above_first(backbone, given.original)
    weights = {
        name: loaded[name]
        for name in backbone.state_dict().keys() & loaded.keys()
        if name.removeprefix("model.") not in found["missing_keys"]
    }
    heads = [name for name in found["unexpected_keys"] if name not in above]
    return Renamed("palm", weights | dict(above.values()), sorted(heads), [], given.original)


def _above_first(backbone: Transformers, original: Mapping[str, Tensor]) -> dict[str, tuple[str, Tensor]]:
    """Find the layers above the first token in a file: its name -> (our name, tensor).

    A classifier layer that repeats the encoder's pooler under another name is loaded from the pooler.
    """
    found = {}
    for name in backbone.state_dict():
        own = name.removeprefix(ABOVE)
        pooler = own.replace("classifier.dense", "pooler.dense")
        for theirs in (own, pooler, f"{backbone.model.base_model_prefix}.{pooler}"):
            if name.startswith(ABOVE) and theirs in original:
                found[theirs] = (name, original[theirs])
                break
    return found


def write_library_encoder(
    weights: Mapping[str, Tensor], backbone: Transformers, folder: Path, original: Mapping[str, Tensor]
) -> None:
    """Write an encoder as the library does; see `write_hugging_face` for the arguments."""
    own = {name.removeprefix(f"{backbone.model.base_model_prefix}."): v for name, v in original.items()}
    own |= {name.removeprefix("model."): value for name, value in weights.items()}
    for name, value in weights.items():
        if name.startswith(f"{ABOVE}classifier.dense."):
            own[name.replace(f"{ABOVE}classifier", "pooler")] = value
    model = library().AutoModel.from_config(backbone.config)
    own = {name: value for name, value in own.items() if name in model.state_dict()}
    model.load_state_dict(own, strict=False)
    save_library_model(model, folder, own)


def save_library_model(model: Any, folder: Path, weights: Mapping[str, Tensor] | None = None) -> None:
    """Write a model with the library's own method; with all of its weights, or only the given ones."""
    with quiet_library():
        model.save_pretrained(folder, state_dict=weights)


@contextmanager
def quiet_library() -> Iterator[None]:
    """Suppress the library's progress bars and reports within the block; palm has its own report."""
    logging = library().utils.logging
    level = logging.get_verbosity()
    has_bars = logging.is_progress_bar_enabled()
    logging.set_verbosity_error()
    logging.disable_progress_bar()
    try:
        yield
    finally:
        logging.set_verbosity(level)
        if has_bars:
            logging.enable_progress_bar()


def computed_settings(backbone: Transformers, file: Path) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return the settings that affect the computation, of an encoder and in a directory's `config.json`."""
    ours = backbone.config.to_dict()
    names = [name for name in ours if name not in IRRELEVANT.split() and "dropout" not in name]
    return {name: ours[name] for name in names}, read_encoder_config(file).to_dict()
