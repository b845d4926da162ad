"""The JSON file beside an encoder's weights, with its architecture and sizes."""

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
from palm.core.io import read_object, wrap_read_errors
from palm.core.saved import file_settings
from palm.pretrained.families import FAMILIES
from palm.pretrained.names import Renamed

CONFIG_FILES = (
    *("config.json", "bert_config.json", "ernie_config.json", "model_config.json"),
    *("electra_config.json", "roberta_config.json", "xlnet_config.json"),
)
"""Files with an encoder's sizes; the first one that exists is used."""

BACKBONE_OF = {family.model_type: name for name, family in FAMILIES.items()} | {
    "xlm-roberta": "roberta",
    "camembert": "roberta",
}
"""`model_type` of Hugging Face -> our name of the encoder."""

COMPUTED_AS: dict[str, Any] = {
    "is_decoder": False,
    "add_cross_attention": False,
    "position_embedding_type": "absolute",
    "normalize_before": False,
    "pruned_heads": {},
    "quantization_config": None,
}
"""Setting of other frameworks that changes the computation -> the only value that palm supports."""

ROWS_OF = {
    "intermediate_size": "layers.0.ffn.inner.weight",
    "type_vocab_size": "embeddings.segment.weight",
    "task_type_vocab_size": "embeddings.task.weight",
}
"""Setting that files lack or have wrong -> the parameter with this number of rows."""

_CLASS = re.compile(r"([A-Za-z]+?)(?:Model|For[A-Z]\w*)$")


def find_config(path: Path) -> Path | None:
    """Find the JSON file in a directory or, as with PaddlePALM's `params`, one level up; None if missing."""
    folder = path if path.is_dir() else path.parent
    places = (place / name for place in (folder, folder.parent) for name in CONFIG_FILES)
    return next((place for place in places if place.is_file()), None)


def read_config(file: Path) -> dict[str, Any]:
    """Read the file; PaddleNLP's nested `init_args` are flattened.

    Raises:
        StorageError: if it is not a JSON object.
    """
    config = read_object(file)
    inner = next((value for value in config.pop("init_args", ()) if isinstance(value, dict)), {})
    return {**inner, **config}


def described(file: Path, given: Renamed) -> tuple[str, dict[str, Any]]:
    """Determine an encoder's name in a configuration and its constructor's arguments from a JSON file.

    Args:
        file: a file of `CONFIG_FILES`, possibly of a model saved by palm.
        given: the weights beside it, from which missing settings are inferred.

    Raises:
        StorageError: if it describes a model that palm does not support.
        ConfigError: if sizes are missing.
    """
    config = read_config(file)
    with wrap_read_errors(file), prefix_errors(file):
        if isinstance(config.get("backbone"), dict):
            return _saved_by_palm(config["backbone"], file)
        if config.get("model_type") in RUN - BACKBONE_OF.keys():
            return "transformers", {"encoder_config_path": file}
        check_computation(config, file)
        name = _name(config, file, given)
        encoder = BACKBONES[name]
        assert issubclass(encoder, Encoder)
        return name, encoder.settings_in({**config, **_inferred_settings(given, config)})


@contextmanager
def prefix_errors(file: Path) -> Iterator[None]:
    """Prefix every problem of a `ConfigError` with the file."""
    try:
        yield
    except ConfigError as error:
        raise ConfigError(f"{file}: {problem}" for problem in error.problems) from None


def check_computation(config: Mapping[str, Any], file: Path) -> None:
    """Refuse settings of other frameworks with which the weights compute something unsupported.

    Raises:
        StorageError: if there are any; lists all of them.
    """
    if wrong := computation_problems(config):
        raise StorageError("\n".join(f"{file}: {line}" for line in wrong.values()))


def computation_problems(config: Mapping[str, Any]) -> dict[str, str]:
    """Map each setting that differs from `COMPUTED_AS` to a message."""
    return {
        name: f"{name} is {config[name]!r}; palm's encoders support only {usual!r} and would compute other "
        "results; use other weights, or backbone: transformers"
        for name, usual in COMPUTED_AS.items()
        if config.get(name) is not None and config[name] != usual
    }


def _saved_by_palm(saved: Mapping[str, Any], file: Path) -> tuple[str, dict[str, Any]]:
    """Check that the encoder is one of palm's own, because a directory of weights must not run code."""
    name = saved["name"]
    settings = file_settings(saved["settings"], file.parent)
    if name not in set(BACKBONES):
        raise StorageError(
            f"{file} describes the backbone {name!r}; only palm's own ({', '.join(BACKBONES)}) are built "
            "from a directory of weights; name it in the configuration to start from these weights"
        )
    if extra := settings.keys() - settings_of(BACKBONES[name]).keys():  # type: ignore[arg-type]
        raise StorageError(f"{file}: {name} has no settings {', '.join(map(repr, sorted(extra)))}")
    return name, settings


def _name(config: Mapping[str, Any], file: Path, given: Renamed) -> str:
    kind = _declared_kind(config) or _inferred_kind(config, file, given)
    if kind not in BACKBONE_OF:
        raise StorageError(f"{file}: {unknown(kind)}")
    # PaddleNLP calls BERTs with RoBERTa's training "roberta", too; only byte-level ones have a pad id of 1.
    is_bert = kind == "roberta" and given.layout == "paddlenlp" and not config.get("pad_token_id")
    return "bert" if is_bert else BACKBONE_OF[kind]


def _declared_kind(config: Mapping[str, Any]) -> str | None:
    """Return Hugging Face's `model_type`, or the prefix of a class name of PaddleNLP."""
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


def _inferred_settings(given: Renamed, config: Mapping[str, Any]) -> dict[str, Any]:
    """Infer missing or wrong settings: PaddlePALM's files may contain an inner width that was not used."""
    rows = {name: len(given.weights[ours]) for name, ours in ROWS_OF.items() if ours in given.weights}
    wrong = {"intermediate_size"} & rows.keys()
    lacking = set() if "sent_type_vocab_size" in config else rows.keys() - config.keys()
    found: dict[str, Any] = {name: rows[name] for name in wrong | lacking}
    if not {"use_task_id", "use_task_emb"} & config.keys():
        found["use_task_id"] = "embeddings.task.weight" in given.weights
    return found
