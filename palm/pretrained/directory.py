"""Directories of pretrained weights: encoder, sizes, weights and vocabulary."""

from __future__ import annotations

import json
from contextlib import nullcontext
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch

from palm.backbone import BACKBONES, Backbone
from palm.backbone.transformers import Transformers
from palm.core.errors import StorageError
from palm.core.files.manifest import is_sealed, verify
from palm.core.files.serialization import file_settings
from palm.core.files.untrusted import wrap_read_errors
from palm.core.limits import explain_limits
from palm.core.numerics.allocation_limit import within_weights
from palm.core.numerics.skip_init import skip_init
from palm.pretrained.configs import CONFIG_FILES, described, find_config, prefix_errors, read_config, sizes_of
from palm.pretrained.files import read_weights
from palm.pretrained.loading import fill_backbone
from palm.pretrained.names import Renamed, to_ours
from palm.pretrained.vocabularies import find_vocabulary, is_lower_case


@dataclass(frozen=True)
class ModelDirectory:
    """The content of a directory with an encoder's weights.

    Args:
        path: the directory, or the file of weights in it.
        config_file: the JSON file with the sizes.
        backbone: the encoder's name in a configuration.
        settings: the arguments of its constructor.
        vocab_path: the vocabulary; None if there is none.
        do_lower_case: True if the vocabulary needs lower-cased texts.
        given: the weights under our names, and the other tensors of the files.
    """

    path: Path
    config_file: Path
    backbone: str
    settings: dict[str, Any]
    vocab_path: Path | None
    do_lower_case: bool
    given: Renamed = field(repr=False)

    def build(self) -> Backbone:
        """Build the encoder without the weights; optional parameters that they lack are initialized.

        Raises:
            ConfigError: if a size is invalid.
            StorageError: if sizes far exceed those of the weights.
        """
        file = self.config_file
        complete = all(name in self.given.weights for name in ("pooler.weight", "pooler.bias"))
        start = skip_init() if complete else nullcontext()
        with wrap_read_errors(file), prefix_errors(file), within_weights(self.given.weights, file), start:
            return BACKBONES[self.backbone](**self.settings)


def read_directory(path: str | Path, headers: bool = False) -> ModelDirectory:
    """Read a directory of pretrained weights.

    Args:
        path: a directory that `load_backbone` accepts, or the file of weights itself.
        headers: do not read the values of the weights; see `read_weights`.

    Raises:
        StorageError, ConfigError: see `load_backbone`.
    """
    path = Path(path)
    with wrap_read_errors(path):
        given = to_ours(read_weights(path, headers))
        config_file = find_config(path)
        if config_file is None:
            raise StorageError(_missing_config(path, given))
        description = described(config_file, given)
        return ModelDirectory(path, config_file, *description, *_vocabulary_of(config_file), given)


def _missing_config(path: Path, given: Renamed) -> str:
    missing = f"{path} has weights but none of {', '.join(CONFIG_FILES)}, which define the sizes"
    config = {"model_type": "bert", **sizes_of(given), "num_attention_heads": "?"}
    remedy = (
        "; create a config.json beside the weights from the following sizes, which were inferred from them; "
        f"correct model_type and the number of heads: {json.dumps(config)}"
    )
    return missing + remedy if given.weights else missing


def _vocabulary_of(config_file: Path) -> tuple[Path | None, bool]:
    """Find the vocabulary beside a JSON file, and check whether it needs lower-cased texts."""
    saved = read_config(config_file).get("reader")
    if isinstance(saved, dict) and "settings" in saved:  # a palm model, which stores both
        settings = file_settings(saved["settings"], config_file.parent)
        return settings["vocab_path"], bool(settings.get("do_lower_case"))
    vocabulary = find_vocabulary(config_file.parent)
    return vocabulary, vocabulary is not None and is_lower_case(vocabulary)


def settings_of_directory(path: str | Path) -> dict[str, Any]:
    """Determine the settings of a run that starts from a directory's weights, for `backbone: auto`.

    Args:
        path: a directory, see `read_directory`.

    Returns:
        `backbone`, the settings of its constructor, `vocab_path` (absolute; the expected file if there is no
        vocabulary) and `do_lower_case`.

    Raises:
        StorageError, ConfigError: see `load_backbone`.
    """
    directory = read_directory(Path(path).absolute(), headers=True)
    with torch.device("meta"):  # only to check the settings and derive sizes
        backbone = directory.build()
    sizes = backbone.sizes() if isinstance(backbone, Transformers) else {}
    expected = "vocab.json" if directory.backbone == "roberta" else "vocab.txt"
    if any(directory.config_file.parent.glob("*.model")):  # SentencePiece's own file
        expected = "tokenizer.json"
    vocabulary = directory.vocab_path or directory.config_file.with_name(expected)
    return {
        "backbone": directory.backbone,
        **directory.settings,
        **sizes,
        "vocab_path": str(vocabulary),
        "do_lower_case": directory.do_lower_case,
    }


@explain_limits()
def load_backbone(path: str | Path) -> Backbone:
    """Load the encoder of a model directory, in `eval()` mode.

    Args:
        path: a directory of Hugging Face, PaddleNLP, PaddlePALM or palm: weights, and a JSON file with the
            sizes beside them or, as with PaddlePALM's `params`, one level up.

    Returns:
        A module that maps a dictionary of the tensors of `inputs_attr` to those of `outputs_attr`.

    Raises:
        StorageError: if files are missing or damaged, or belong to another kind of model.
        ConfigError: if sizes are missing or invalid in the JSON file.
    """
    if is_sealed(Path(path)):
        verify(Path(path))
    directory = read_directory(path)
    backbone = directory.build()
    fill_backbone(backbone, directory.given, directory.path)
    return backbone.eval()
