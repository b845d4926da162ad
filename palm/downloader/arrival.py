"""A model's files on arrival: palm reads them once, and keeps PaddlePALM's as safetensors too."""

from __future__ import annotations

from pathlib import Path

from safetensors import SafetensorError

from palm.core.errors import StorageError
from palm.pretrained import read_directory, read_weights
from palm.pretrained.configs import CONFIG_FILES, find_config
from palm.pretrained.loading import fill_backbone
from palm.pretrained.vocabularies import VOCABULARIES, find_vocabulary
from palm.pretrained.writing import write_hugging_face


def check(folder: Path) -> None:
    """Make sure that a folder holds weights, the sizes of their encoder and a vocabulary.

    Raises:
        StorageError: something is missing or damaged.
    """
    missing = [] if find_config(folder) else [" or ".join(CONFIG_FILES)]
    missing += [] if find_vocabulary(folder) else [" or ".join(VOCABULARIES)]
    if missing:
        raise StorageError(f"no model has arrived: there is no {' and no '.join(missing)}")
    read_weights(folder)


def add_safetensors(folder: Path) -> None:
    """Put `model.safetensors` and `config.json` beside PaddlePALM's files, as Hugging Face lays them out.

    They hold the same numbers in one file that is read faster, by other programs too. Parameters that
    the files lack are not made up.

    Raises:
        StorageError: weights are missing, or do not fit their JSON file.
        ConfigError: the JSON file's sizes are missing or wrong.
        OSError: the folder cannot be written.
    """
    directory = read_directory(folder)
    backbone = directory.build()
    loaded = fill_backbone(backbone, directory.given, folder).loaded
    try:
        write_hugging_face({name: directory.given.weights[name] for name in loaded}, backbone, folder)
    except SafetensorError as error:  # its words for a disk that is full
        raise OSError(str(error)) from error
