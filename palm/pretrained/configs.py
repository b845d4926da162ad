"""The JSON file beside an encoder's weights: which encoder it is, and how large."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from palm.backbone import BACKBONES
from palm.backbone.encoder import Encoder
from palm.backbone.transformers_config import RUN, unknown
from palm.config import settings_of
from palm.core.errors import ConfigError, StorageError
from palm.core.files.serialization import file_settings
from palm.core.files.untrusted import read_object, wrap_read_errors
from palm.pretrained.families import FAMILIES
from palm.pretrained.names import Renamed

CONFIG_FILES = (
    *("config.json", "bert_config.json", "ernie_config.json", "model_config.json"),
    *("electra_config.json", "roberta_config.json", "xlnet_config.json"),
)
"""Files that tell an encoder's sizes; the first that is there counts."""

BACKBONE_OF = {family.model_type: name for name, family in FAMILIES.items()} | {
    "xlm-roberta": "roberta",
    "camembert": "roberta",
}
"""`model_type` of Hugging Face -> our name of the encoder that it is."""

COMPUTED_AS: dict[str, Any] = {
    "is_decoder": False,
    "add_cross_attention": False,
    "position_embedding_type": "absolute",
    "normalize_before": False,
    "pruned_heads": {},
    "quantization_config": None,
}
"""Setting of others that changes the computation -> the only value that palm's encoders have."""

ROWS_OF = {
    "hidden_size": "layers.0.attention.query.weight",
    "intermediate_size": "layers.0.ffn.inner.weight",
    "vocab_size": "embeddings.word.weight",
    "max_position_embeddings": "embeddings.position.weight",
    "type_vocab_size": "embeddings.segment.weight",
    "task_type_vocab_size": "embeddings.task.weight",
}
"""Setting -> the parameter that has so many rows."""


def find_config(path: Path) -> Path | None:
    """The JSON file in a directory, or, as beside PaddlePALM's `params`, one level up; None without."""
    folder = path if path.is_dir() else path.parent
    places = (place / name for place in (folder, folder.parent) for name in CONFIG_FILES)
    return next((place for place in places if place.is_file()), None)


def read_config(file: Path) -> dict[str, Any]:
    """The file's content; PaddleNLP's nested `init_args` are laid flat.

    Raises:
        StorageError: it is not a JSON object.
    """
    config = read_object(file)
    inner = next((value for value in config.pop("init_args", ()) if isinstance(value, dict)), {})
    return {**inner, **config}


def described(file: Path, given: Renamed) -> tuple[str, dict[str, Any]]:
    """The encoder that a JSON file describes: its name in a configuration and its constructor's arguments.

    Args:
        file: a file of `CONFIG_FILES`, also that of a saved model of our own.
        given: the weights beside it; they tell what the file leaves open.

    Raises:
        StorageError: it describes a model that palm does not have.
        ConfigError: sizes are missing.
    """
    config = read_config(file)
    with wrap_read_errors(file), placed(file):
        saved = config.get("backbone")
        if isinstance(saved, dict):  # of palm's own: weights to start from bring no code
            name = saved["name"]
            settings = file_settings(saved["settings"], file.parent)
            if name not in set(BACKBONES):
                raise StorageError(
                    f"{file} describes the backbone {name!r}; only palm's own ({', '.join(BACKBONES)}) are "
                    "built from a directory of weights; name it in the configuration to start from these "
                    "weights"
                )
            if strange := settings.keys() - settings_of(BACKBONES[name]).keys():  # type: ignore[arg-type]
                unknown = ", ".join(map(repr, sorted(strange)))
                raise StorageError(f"{file}: {name} has no settings {unknown}")
            return name, settings
        if config.get("model_type") in RUN - BACKBONE_OF.keys():
            return "transformers", {"encoder_config_path": file}
        check_computation(config, file)
        name = _name(config, file, given)
        encoder = BACKBONES[name]
        assert issubclass(encoder, Encoder)
        return name, encoder.settings_in({**config, **_told_by(given, config)})


@contextmanager
def placed(file: Path) -> Iterator[None]:
    """Name the file in front of every problem with settings of it."""
    try:
        yield
    except ConfigError as error:
        raise ConfigError(f"{file}: {problem}" for problem in error.problems) from None


def sizes_of(given: Renamed) -> dict[str, int]:
    """Infer settings of an encoder from its weights; all but the number of attention heads."""
    layers = {name.split(".")[1] for name in given.weights if name.startswith("layers.")}
    weights = given.weights
    sizes = {setting: len(weights[name]) for setting, name in ROWS_OF.items() if name in weights}
    return {**sizes, "num_hidden_layers": len(layers)} if layers else sizes


def check_computation(config: Mapping[str, Any], file: Path) -> None:
    """Refuse settings of others with which the weights compute something that palm's encoders do not.

    Raises:
        StorageError: there are some; names them.
    """
    if wrong := computation_problems(config):
        raise StorageError("\n".join(f"{file}: {line}" for line in wrong.values()))


def computation_problems(config: Mapping[str, Any]) -> dict[str, str]:
    """Return those of `COMPUTED_AS` that have another value, each with what is wrong with it."""
    return {
        name: f"{name} is {config[name]!r}; palm's encoders compute as with {usual!r} only, and would give "
        "other numbers; take other weights, or backbone: transformers"
        for name, usual in COMPUTED_AS.items()
        if config.get(name) is not None and config[name] != usual
    }


def _name(config: Mapping[str, Any], file: Path, given: Renamed) -> str:
    kind = _declared_kind(config) or _inferred_kind(config, file, given)
    if kind not in BACKBONE_OF:
        raise StorageError(f"{file}: {unknown(kind)}")
    # PaddleNLP calls BERTs that were trained as RoBERTa was by that name; only byte-level ones pad with 1.
    is_bert = kind == "roberta" and given.layout == "paddlenlp" and not config.get("pad_token_id")
    return "bert" if is_bert else BACKBONE_OF[kind]


def _declared_kind(config: Mapping[str, Any]) -> str | None:
    """Return Hugging Face's `model_type`, or what the name of a class of PaddleNLP begins with."""
    if "model_type" in config:
        return str(config["model_type"])
    classes = [config.get("init_class"), *(config.get("architectures") or ())]
    matches = (_CLASS.match(name) for name in classes if name)
    return next((match[1].lower() for match in matches if match), None)


def _inferred_kind(config: Mapping[str, Any], file: Path, given: Renamed) -> str:
    kind = file.name.removesuffix("_config.json")
    if kind in ("ernie", "electra", "roberta", "xlnet"):
        return kind
    if "task_type_vocab_size" in config or "embeddings.task.weight" in given.weights:
        return "ernie"
    if given.layout == "distilbert":
        return "distilbert"
    return "electra" if "embeddings.projection.weight" in given.weights else "bert"


_CLASS = re.compile(r"([A-Za-z]+?)(?:Model|For[A-Z]\w*)$")


def _told_by(given: Renamed, config: Mapping[str, Any]) -> dict[str, Any]:
    """Infer what files leave out or get wrong: PaddlePALM's may name an inner width that it did not use."""
    sizes = sizes_of(given)
    found: dict[str, Any] = {name: sizes[name] for name in ("intermediate_size",) if name in sizes}
    if "sent_type_vocab_size" not in config:
        optional = ("type_vocab_size", "task_type_vocab_size")
        found |= {name: sizes[name] for name in optional if name in sizes.keys() - config.keys()}
    if not {"use_task_id", "use_task_emb"} & config.keys():
        found["use_task_id"] = "embeddings.task.weight" in given.weights
    return found
