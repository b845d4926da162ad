"""Directories of pretrained weights: format, encoder, sizes, vocabulary."""

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
from palm.pretrained.configs import CONFIG_FILES, described, find_config, placed, read_config, sizes_of
from palm.pretrained.files import read_weights
from palm.pretrained.loading import fill_backbone
from palm.pretrained.names import Renamed, to_ours
from palm.pretrained.vocabularies import find_vocabulary, is_lower_case


@dataclass(frozen=True)
class ModelDirectory:
    """A directory with an encoder's weights, read.

    Args:
        path: the directory, or the file of weights in it.
        config_file: the JSON file that tells the sizes.
        backbone: the encoder's name in a configuration.
        settings: the arguments of its constructor.
        vocab_path: the vocabulary; None where there is none.
        do_lower_case: whether texts are lower-cased for it.
        given: the weights under our names, and what else the files hold.
    """

    path: Path
    config_file: Path
    backbone: str
    settings: dict[str, Any]
    vocab_path: Path | None
    do_lower_case: bool
    given: Renamed = field(repr=False)

    def build(self) -> Backbone:
        """Build the encoder, to be filled with the weights; what they may lack is initialized.

        Raises:
            ConfigError: a size is wrong.
            StorageError: sizes are far beyond those of the weights.
        """
        file = self.config_file
        complete = all(name in self.given.weights for name in ("pooler.weight", "pooler.bias"))
        start = skip_init() if complete else nullcontext()
        with wrap_read_errors(file), placed(file), within_weights(self.given.weights, file), start:
            return BACKBONES[self.backbone](**self.settings)


def read_directory(path: str | Path, headers: bool = False) -> ModelDirectory:
    """Find out what a directory holds.

    Args:
        path: as for `load_backbone`; or the file of weights itself.
        headers: do not read the numbers of the weights; see `read_weights`.

    Raises:
        StorageError, ConfigError: as `load_backbone`.
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
    missing = f"{path} has weights but none of {', '.join(CONFIG_FILES)}, which tell the sizes"
    config = {"model_type": "bert", **sizes_of(given), "num_attention_heads": "?"}
    remedy = (
        "; the weights tell as much as this, so put it beside them as config.json, with the right model_type "
        f"and number of heads: {json.dumps(config)}"
    )
    return missing + remedy if given.weights else missing


def _vocabulary_of(config_file: Path) -> tuple[Path | None, bool]:
    """Find the vocabulary beside a JSON file, and whether texts are lower-cased for it."""
    saved = read_config(config_file).get("reader")
    if isinstance(saved, dict) and "settings" in saved:  # a model of our own says both
        settings = file_settings(saved["settings"], config_file.parent)
        return settings["vocab_path"], bool(settings.get("do_lower_case"))
    vocabulary = find_vocabulary(config_file.parent)
    return vocabulary, vocabulary is not None and is_lower_case(vocabulary)


def settings_of_directory(path: str | Path) -> dict[str, Any]:
    """The settings that a run needs to start from a directory's weights, as `backbone: auto` takes them.

    Args:
        path: as for `read_directory`.

    Returns:
        `backbone`, the settings of its constructor, `vocab_path` (absolute; the file that should be
        there, where there is no vocabulary) and `do_lower_case`.

    Raises:
        StorageError, ConfigError: as `read_directory`.
    """
    directory = read_directory(Path(path).absolute(), headers=True)
    with torch.device("meta"):  # without its numbers; a run would build it from the settings alone
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
    """Load the encoder of a model directory, ready to compute (in `eval()` mode).

    Args:
        path: a directory that Hugging Face, PaddleNLP, PaddlePALM or palm wrote: weights, and a
            JSON file with the sizes beside them or, as beside PaddlePALM's `params`, one level up.

    Returns:
        A module that maps the inputs of its `inputs_attr`, a dictionary of tensors, to those of its
        `outputs_attr`.

    Raises:
        StorageError: files are missing or damaged, or of another kind of model.
        ConfigError: the JSON file's sizes are missing or wrong.
    """
    if is_sealed(Path(path)):
        verify(Path(path))
    directory = read_directory(path)
    backbone = directory.build()
    fill_backbone(backbone, directory.given, directory.path)
    return backbone.eval()
