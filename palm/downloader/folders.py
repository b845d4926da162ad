"""A model's folder: its files are gathered beside it, read once, and put in place all at once."""

from __future__ import annotations

from pathlib import Path
from urllib.parse import urlsplit

from safetensors import SafetensorError

from palm.core.errors import PalmError, StorageError
from palm.core.files.door import copy, make_folder, remove, remove_empty, rename
from palm.core.logging import logger
from palm.downloader.archives import unpack
from palm.downloader.fetching import fetch
from palm.downloader.hub import files_of, snapshot
from palm.downloader.models import Model
from palm.downloader.staging import staging
from palm.pretrained import ModelDirectory, read_directory
from palm.pretrained.configs import CONFIG_FILES, find_config
from palm.pretrained.families import write_hugging_face
from palm.pretrained.loading import fill_backbone
from palm.pretrained.vocabularies import VOCABULARIES, find_vocabulary


def obtain(model: Model, folder: Path) -> None:
    """Download a model to a folder, unless that is there; PaddlePALM's weights become safetensors, too.

    Raises:
        StorageError: the network, the server, what it sent or the disk will not do.
    """
    if _is_there(folder):
        logger.info("%s is there already; remove it to download it again", folder)
        return
    with staging(folder) as work:
        if _is_there(folder):  # another process has made it while this one waited
            return
        files = _snapshot_copy(model, work) if model.repository else _unpacked(model, work)
        remove_empty(folder)  # Windows would not replace it
        rename(files, folder)
        remove(work / "files")
    logger.info("done!")


def _is_there(folder: Path) -> bool:
    return folder.is_dir() and any(folder.iterdir())


def _snapshot_copy(model: Model, work: Path) -> Path:
    """Copy the files of a repository out of Hugging Face's cache."""
    assert model.repository is not None
    logger.info("Downloading pretrain: %s from Hugging Face...", model.repository)
    files = work / "unpacked"
    make_folder(files)
    for file in files_of(snapshot(model.repository)):
        copy(file, files / file.name)
    _checked(files)
    return files


def _unpacked(model: Model, work: Path) -> Path:
    """Download an archive and unpack it."""
    address = model.address()
    archive = work / "files" / Path(urlsplit(address).path).name
    logger.info("Downloading pretrain: %s from %s...", model.name, address)
    fetch(address, archive)
    try:
        logger.info("Extracting %s...", archive.name)
        files = unpack(archive, work / "unpacked")
        if model.is_supported:
            directory = _checked(files)
            if not (files / "model.safetensors").exists():  # a mirror's archive may have it already
                _convert(directory)
    except PalmError as error:
        if isinstance(error.__cause__, OSError | SafetensorError):  # the disk, not what has arrived
            raise OSError(str(error.__cause__)) from error
        remove(work / "files")  # what has arrived whole, and is no good, will be no better next time
        raise
    return files


def _convert(directory: ModelDirectory) -> None:
    """Write the numbers as Hugging Face lays them out; parameters that are lacking are not made up."""
    backbone = directory.build()
    loaded = fill_backbone(backbone, directory.given, directory.path).loaded
    write_hugging_face({name: directory.given.weights[name] for name in loaded}, backbone, directory.path)


def _checked(folder: Path) -> ModelDirectory:
    """Read a folder that should hold weights, the sizes of their encoder and a vocabulary.

    Raises:
        StorageError: something is missing or damaged.
    """
    missing = [] if find_config(folder) else [" or ".join(CONFIG_FILES)]
    missing += [] if find_vocabulary(folder) else [" or ".join(VOCABULARIES)]
    if missing:
        raise StorageError(f"no model has arrived: there is no {' and no '.join(missing)}")
    return read_directory(folder)
