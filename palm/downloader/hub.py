"""Models at Hugging Face by name: out of its cache, or downloaded into it, by its own library."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import huggingface_hub  # what is in it, its HTTP library too, is loaded when it is first used

from palm import pretrained
from palm.backbone import Backbone
from palm.config.model_names import names_model
from palm.core.checks import path_problems, raise_any
from palm.core.errors import StorageError
from palm.core.registry import did_you_mean
from palm.core.version import __version__
from palm.downloader.models import MODELS
from palm.pretrained.configs import CONFIG_FILES
from palm.pretrained.directory import settings_of_directory
from palm.pretrained.library import POOLING_FILE

if TYPE_CHECKING:
    import huggingface_hub.constants
    import huggingface_hub.errors

_ALWAYS = [*CONFIG_FILES, "tokenizer_config.json", POOLING_FILE]
_VOCABULARIES = (["vocab.txt"], ["vocab.json", "merges.txt"], ["tokenizer.json"])
_WEIGHTS = (
    ["model.safetensors"],
    ["model.safetensors.index.json", "model-*.safetensors"],
    ["pytorch_model.bin"],
    ["pytorch_model.bin.index.json", "pytorch_model-*.bin"],
    ["model_state.pdparams"],
)
"""Files of a repository: of several groups the first that is there, in the order in which palm reads them."""

_LOG_IN = "log in with `hf auth login`, or set HF_TOKEN"


def pretrained_directory(value: str | Path) -> Path:
    """Return the directory of a model: a path as it is, or the snapshot of a model at Hugging Face.

    A snapshot is downloaded if necessary; the last part of its path is the commit.

    Raises:
        StorageError: there is neither such a folder nor such a model.
    """
    raise_any(path_problems(path=value))
    name = value if isinstance(value, str) else value.as_posix()
    if names_model(name, Path()):
        try:
            return snapshot(name)
        except StorageError as error:
            raise StorageError(f"no such folder: {Path(name).absolute()}; model {error}") from error
    path = Path(value)
    if path.name in MODELS and not path.exists():
        raise StorageError(
            f"no such folder: {path.absolute()}; `palm download {path.name}` makes it in ./pretrain"
        )
    return path


def settings_of_model(value: str | Path) -> dict[str, Any]:
    """`settings_of_directory` of what `pretrained_directory` takes.

    Returns:
        What it returns; for a model at Hugging Face also `pretrain_path`, its name with the commit.
    """
    directory = pretrained_directory(value)
    found = settings_of_directory(directory)
    if directory == Path(value):
        return found
    return {**found, "pretrain_path": f"{str(value).partition('@')[0]}@{directory.name}"}


def load_backbone(path: str | Path) -> Backbone:
    """Load the encoder of a model directory, or of a model at Hugging Face, in `eval()` mode.

    Args:
        path: a directory that Hugging Face, PaddleNLP, PaddlePALM or palm wrote: weights, and a
            JSON file with the sizes beside them or, as beside PaddlePALM's `params`, one level up; or
            `owner/name` or `owner/name@revision` of a model at Hugging Face.

    Returns:
        A module that maps the inputs of its `inputs_attr`, a dictionary of tensors, to those of its
        `outputs_attr`.

    Raises:
        StorageError: files are missing or damaged, or of another kind of model.
        ConfigError: the JSON file's sizes are missing or wrong.
    """
    return pretrained.load_backbone(pretrained_directory(path))


def snapshot(model: str) -> Path:
    """Download the files of a model that palm reads to Hugging Face's cache; return its folder there.

    Args:
        model: `owner/name` or `owner/name@revision`.

    Raises:
        StorageError: no such model, no way to it, or no weights that palm reads.
    """
    name, _, revision = model.partition("@")
    try:
        folder = _fetch(name, revision or None, _VOCABULARIES[0] + _WEIGHTS[0])
        for groups in (_VOCABULARIES, _WEIGHTS):
            for files in groups[1:]:
                if not _first(groups, folder):
                    _fetch(name, folder.name, files)  # of the same commit, whatever is pushed meanwhile
    except Exception as error:  # errors of its HTTP library too, which is another one in other versions
        raise StorageError(f"{model}: {_explained(name, revision, error)}") from error
    if not _first(_WEIGHTS, folder):
        expected = ", ".join(files[0] for files in _WEIGHTS)
        raise StorageError(f"{model}: it has no weights that palm reads ({expected})")
    return folder


def _fetch(name: str, revision: str | None, files: list[str]) -> Path:
    path = huggingface_hub.snapshot_download(
        name,
        revision=revision,
        allow_patterns=[*_ALWAYS, *files],
        library_name="palm",
        library_version=__version__,
    )
    return Path(path)


def files_of(folder: Path) -> list[Path]:
    """The files of a snapshot that palm reads; other programs may have fetched more."""
    always = [folder / name for name in _ALWAYS if (folder / name).is_file()]
    return [*always, *_first(_VOCABULARIES, folder), *_first(_WEIGHTS, folder)]


def _first(groups: Iterable[list[str]], folder: Path) -> list[Path]:
    """The files of the first group of which a folder has all; none where it has no such group."""
    for group in groups:
        found = [sorted(folder.glob(pattern)) for pattern in group]
        if all(found):
            return [file for files in found for file in files]
    return []


def _explained(name: str, revision: str, error: Exception) -> str:
    """Return a failure in a user's words, with what to do."""
    errors = huggingface_hub.errors
    constants = huggingface_hub.constants
    cache = Path(constants.HF_HUB_CACHE)
    server = constants.ENDPOINT
    cached = [folder.name.removeprefix("models--").replace("--", "/") for folder in cache.glob("models--*")]
    listed = [model.repository for model in MODELS.values() if model.repository]
    hint = did_you_mean(name, dict.fromkeys([*listed, *cached]).keys() - {name})
    if isinstance(error, errors.GatedRepoError):
        return f"its owner asks for consent to conditions; accept them at {server}/{name}, and {_LOG_IN}"
    if isinstance(error, errors.RepositoryNotFoundError):
        return f"{server} has no such model; if it is private, {_LOG_IN}{hint}"
    if isinstance(error, errors.RevisionNotFoundError):
        return f"{server} has no revision {revision!r} of it; give a branch, a tag or a commit, or nothing"
    if constants.HF_HUB_OFFLINE:
        return f"HF_HUB_OFFLINE is set, and {cache} has not all of it; unset it to download the model{hint}"
    cause = str(error.__cause__ or error).partition("\n")[0]
    if isinstance(error, errors.LocalEntryNotFoundError):
        return (
            f"{server} cannot be reached, and {cache} has not all of it ({cause}); look after the "
            "connection, or name a mirror in the environment variable HF_ENDPOINT"
        )
    if isinstance(error, errors.HfHubHTTPError) and error.response.status_code in (401, 403):
        return f"{cause}; {_LOG_IN}"
    return f"{type(error).__name__}: {cause}; run the same again: whole files that have come are kept"
