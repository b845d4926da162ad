"""Atomic creation of a model's folder: files are collected beside it, checked, and moved at once."""

from __future__ import annotations

from pathlib import Path
from urllib.parse import urlsplit

from safetensors import SafetensorError

from palm.core.errors import PalmError, StorageError
from palm.core.files.door import copy, make_folder, remove, remove_empty, rename
from palm.core.logging import logger
from palm.downloader.archives import DAMAGE, unpack
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
    """Download a model to a folder, unless it exists; PaddlePALM's weights are also saved as safetensors.

    Raises:
        StorageError: if the network, the server or the disk fails, or if the files are not a valid model.
    """
    if _is_filled(folder):
        logger.info("%s already exists; remove it to download it again", folder)
        return
    with staging(folder) as work:
        if _is_filled(folder):  # created by another process while this one waited
            return
        files = _copy_snapshot(model, work) if model.repository else _fetch_archive(model, work)
        remove_empty(folder)  # because Windows cannot replace it
        rename(files, folder)
        remove(work / "files")
    logger.info("done!")


def _is_filled(folder: Path) -> bool:
    return folder.is_dir() and any(folder.iterdir())


def _copy_snapshot(model: Model, work: Path) -> Path:
    """Copy the files of a repository from Hugging Face's cache."""
    assert model.repository is not None
    logger.info("Downloading pretrain: %s from Hugging Face...", model.repository)
    files = work / "unpacked"
    make_folder(files)
    for file in files_of(snapshot(model.repository)):
        copy(file, files / file.name)
    _read_checked(files)
    return files


def _fetch_archive(model: Model, work: Path) -> Path:
    """Download an archive and unpack it."""
    address = model.address()
    archive = work / "files" / Path(urlsplit(address).path).name
    logger.info("Downloading pretrain: %s from %s...", model.name, address)
    fetch(address, archive)
    try:
        logger.info("Extracting %s...", archive.name)
        files = unpack(archive, work / "unpacked")
        if model.is_supported:
            directory = _read_checked(files)
            if not (files / "model.safetensors").exists():  # a mirror's archive may contain it
                _convert(directory)
    except PalmError as error:
        cause = error.__cause__
        if isinstance(cause, OSError | SafetensorError) and not isinstance(cause, DAMAGE):  # of the disk
            raise OSError(str(cause)) from error
        remove(work / "files")  # a complete but invalid archive is not worth keeping
        raise
    return files


def _convert(directory: ModelDirectory) -> None:
    """Write the weights in Hugging Face's layout; missing parameters are omitted."""
    backbone = directory.build()
    loaded = fill_backbone(backbone, directory.given, directory.path).loaded
    write_hugging_face({name: directory.given.weights[name] for name in loaded}, backbone, directory.path)


def _read_checked(folder: Path) -> ModelDirectory:
    """Read a folder that should contain weights, the sizes of their encoder and a vocabulary.

    Raises:
        StorageError: if a file is missing or damaged.
    """
    missing = [] if find_config(folder) else [" or ".join(CONFIG_FILES)]
    missing += [] if find_vocabulary(folder) else [" or ".join(VOCABULARIES)]
    if missing:
        raise StorageError(f"the download is not a model: there is no {' and no '.join(missing)}")
    return read_directory(folder)
