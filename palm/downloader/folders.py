"""A model's folder: its files are gathered beside it, read once, and put in place all at once."""

from __future__ import annotations

import shutil
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from urllib.parse import urlsplit

from palm.core.errors import PalmError
from palm.core.logging import logger
from palm.downloader.archives import unpack
from palm.downloader.arrival import add_safetensors, check
from palm.downloader.fetching import FileMissingError, fetch
from palm.downloader.models import MODELS, Model
from palm.downloader.staging import staging

_FILES = (("config.json",), ("vocab.txt", "vocab.json"), ("model.safetensors", "pytorch_model.bin"))
"""The files of a repository; of several names, the first that is there."""

_BESIDE = {"vocab.json": "merges.txt"}
"""File -> what belongs to it."""

_OPTIONAL = "tokenizer_config.json"


def obtain(model: Model, folder: Path, convert: bool) -> None:
    """Download a model, unless its folder is there.

    Args:
        model: which one.
        folder: where it goes.
        convert: whether PaddlePALM's weights are kept as safetensors as well.

    Raises:
        StorageError: the network, the server, what it sent or the disk will not do.
    """
    if _is_there(folder):
        logger.info("%s is there already; remove it to download it again", folder)
        return
    with staging(folder) as work:
        files = _twin(model, folder, work) or _downloaded(model, folder.parent.name, work, convert)
        if folder.is_dir():
            folder.rmdir()  # it was empty; Windows would not replace it
        files.replace(folder)
        shutil.rmtree(work / "files", ignore_errors=True)
    logger.info("done!")


def _is_there(folder: Path) -> bool:
    return folder.is_dir() and any(folder.iterdir())


def _twin(model: Model, folder: Path, work: Path) -> Path | None:
    """A copy of the same model, if it has been downloaded under another name."""
    for other in MODELS.values():
        twin = folder.with_name(other.name)
        if other.url == model.url and _is_there(twin):
            logger.info("Copying %s: it is the same model...", twin)
            return Path(shutil.copytree(twin, work / "unpacked"))
    return None


def _downloaded(model: Model, item: str, work: Path, convert: bool) -> Path:
    address = model.address()
    logger.info("Downloading %s: %s from %s...", item, model.name, address)
    archive = work / "files" / Path(urlsplit(address).path).name
    if model.is_repository:
        _fetch_repository(model, address, work / "files")
    else:
        fetch(address, archive, model.known.get(archive.name))
    try:
        return _settled(model, archive, work, convert)
    except PalmError:
        shutil.rmtree(work / "files")  # what has arrived whole, and is no good, will be no better next time
        raise


def _settled(model: Model, archive: Path, work: Path, convert: bool) -> Path:
    """The files as they are to lie in the model's folder."""
    if model.is_repository:
        check(work / "files")
        return work / "files"
    logger.info("Extracting %s...", archive.name)
    files = unpack(archive, work / "unpacked")
    if model.is_supported:
        check(files)
    if model.is_supported and convert:
        add_safetensors(files)
    return files


def _fetch_repository(model: Model, address: str, files: Path) -> None:
    for names in _FILES:
        _fetch_first(names, model, address, files)
    with suppress(FileMissingError):
        _fetch_first((_OPTIONAL,), model, address, files)


def _fetch_first(names: Sequence[str], model: Model, address: str, files: Path) -> None:
    """Fetch whichever of several files the repository has."""
    for name in names:
        try:
            fetch(f"{address}/resolve/main/{name}", files / name, model.known.get(name))
            if name in _BESIDE:
                _fetch_first((_BESIDE[name],), model, address, files)
            return
        except FileMissingError:
            if name == names[-1]:
                raise
