"""A directory of pretrained weights: its encoder, sizes, weights, vocabulary, letter case and pooling.

Whoever wants to know what a directory of transformers, sentence-transformers, Paddle or palm is asks here.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import nullcontext
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch

from palm.backbone import BACKBONES, Backbone
from palm.backbone.transformers import Transformers
from palm.core.differences import shortened
from palm.core.errors import StorageError
from palm.core.io import read_bytes, read_json, read_object, wrap_read_errors
from palm.core.numerics.allocation_limit import within_weights
from palm.core.numerics.skip_init import skip_init
from palm.core.saved import file_settings
from palm.pretrained.configs import CONFIG_FILES, described, find_config, prefix_errors, read_config
from palm.pretrained.files import read_weights
from palm.pretrained.names import Renamed, to_ours
from palm.reader.text.tokenizer import load_tokenizer
from palm.reader.text.vocabulary import ADDED, MAX_VOCABULARY, MERGES, SETTINGS

VOCABULARIES = ("tokenizer.json", "vocab.txt", "vocab.json")
"""Possible files of a vocabulary; the first one that exists is used. `vocab.json` needs `merges.txt`."""

POOLING_FILE = "1_Pooling/config.json"
"""The file in which the library sentence-transformers stores the pooling."""

POOLING_MODES = {
    "pooling_mode_cls_token": "cls",
    "pooling_mode_mean_tokens": "mean",
    "pooling_mode_max_tokens": "max",
}
"""Settings of that file -> our name of the pooling."""

FILES = (*CONFIG_FILES, *VOCABULARIES, MERGES, SETTINGS, ADDED, POOLING_FILE)
"""The files that palm reads of a directory, beside those of the weights."""


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
        with wrap_read_errors(file), prefix_errors(file), within_weights(self.given.original, file), start:
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
            raise StorageError(
                f"{path} has weights but none of {', '.join(CONFIG_FILES)}, which define the encoder's sizes"
            )
        backbone, settings = described(config_file, given)
        if not given.weights and backbone != "transformers":
            raise StorageError(
                f"none of the tensors of {path} has a name that {backbone} or a wrapper of it gives them: "
                f"{', '.join(shortened(list(given.original), 4))}"
            )
        return ModelDirectory(path, config_file, backbone, settings, *_vocabulary_of(config_file), given)


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


def find_vocabulary(folder: Path) -> Path | None:
    """Find the vocabulary in a folder; None if there is none."""
    files = [folder / name for name in VOCABULARIES if (folder / name).is_file()]
    has_merges = (folder / MERGES).is_file()
    return next((file for file in files if file.name != "vocab.json" or has_merges), None)


def vocabulary_differences(ours: Path, theirs: Path | None) -> Iterator[str]:
    """Compare a reader's vocabulary with that of the weights.

    Args:
        ours: the reader's vocabulary.
        theirs: the vocabulary with which the weights were trained; None if unknown.
    """
    if theirs is None:
        return
    known = load_tokenizer(theirs).ids
    other = [token for token, number in load_tokenizer(ours).ids.items() if known.get(token) != number]
    if other:
        yield (
            f"{len(other)} tokens of {ours} have different ids in {theirs}, the vocabulary of the weights "
            f"({', '.join(map(repr, other[:3]))}); set vocab_path: {theirs}"
        )


def is_lower_case(vocabulary: Path) -> bool:
    """Check whether texts should be lower-cased for a vocabulary.

    `tokenizer_config.json` beside it decides; without it, a WordPiece vocabulary without capital letters is
    lower-case. False for vocabularies in JSON files, which include their own normalization.
    """
    if vocabulary.suffix == ".json":
        return False
    beside = vocabulary.with_name(SETTINGS)
    settings = read_json(beside) if beside.is_file() else None
    found = settings.get("do_lower_case") if isinstance(settings, dict) else None
    if found is not None:
        return bool(found)
    with wrap_read_errors(vocabulary):
        lines = read_bytes(vocabulary, MAX_VOCABULARY).decode("utf-8-sig").splitlines()
    words = (line.split("\t")[0] for line in lines)
    return not any(word != word.lower() for word in words if not word.startswith(("[", "<")))


def directory_pooling(folder: Path) -> str:
    """Read the pooling of a directory of sentence-transformers; `cls` if it has none.

    Raises:
        StorageError: if the file is damaged or the pooling is not supported.
    """
    file = folder / POOLING_FILE
    if not file.is_file():
        return "cls"
    pooling = read_object(file)
    # Newer versions of that library name the poolings; older ones have a switch for each.
    switches = [name for name, value in pooling.items() if name.startswith("pooling_mode_") and value is True]
    named = pooling.get("pooling_mode", switches)
    modes = [POOLING_MODES.get(name, name) for name in (named if isinstance(named, list) else [named])]
    if len(modes) != 1 or modes[0] not in POOLING_MODES.values():
        raise StorageError(f"{file}: expected one pooling of cls, mean and max, not {modes}")
    return str(modes[0])
