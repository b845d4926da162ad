"""Models at Hugging Face by name, from its cache or downloaded to it by its own library."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import huggingface_hub  # its contents, including the HTTP library, are loaded on first use

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
"""Groups of files of a repository in palm's order of preference; the first complete group is used."""

_LOG_IN = "log in with `hf auth login`, or set HF_TOKEN"


def pretrained_directory(value: str | Path) -> Path:
    """Return the directory of a model: the given path, or the snapshot of a model at Hugging Face.

    A snapshot is downloaded if necessary; the last part of its path is the commit.

    Raises:
        StorageError: if neither such a folder nor such a model exists.
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
            f"no such folder: {path.absolute()}; `palm download {path.name}` creates it in ./pretrain"
        )
    return path


def settings_of_model(value: str | Path) -> dict[str, Any]:
    """Call `settings_of_directory` for a path or a model at Hugging Face, see `pretrained_directory`.

    Returns:
        The settings; for a model at Hugging Face also `pretrain_path`, its name with the commit.
    """
    directory = pretrained_directory(value)
    found = settings_of_directory(directory)
    if directory == Path(value):
        return found
    return {**found, "pretrain_path": f"{str(value).partition('@')[0]}@{directory.name}"}


def load_backbone(path: str | Path) -> Backbone:
    """Load the encoder of a model directory, or of a model at Hugging Face, in `eval()` mode.

    Args:
        path: a directory of Hugging Face, PaddleNLP, PaddlePALM or palm: weights, and a JSON file with the
            sizes beside them or, as with PaddlePALM's `params`, one level up; or `owner/name` or
            `owner/name@revision` of a model at Hugging Face.

    Returns:
        A module that maps a dictionary of the tensors of `inputs_attr` to those of `outputs_attr`.

    Raises:
        StorageError: if files are missing or damaged, or belong to another kind of model.
        ConfigError: if sizes are missing or invalid in the JSON file.
    """
    return pretrained.load_backbone(pretrained_directory(path))


def snapshot(model: str) -> Path:
    """Download the files of a model that palm reads to Hugging Face's cache; return its folder there.

    Args:
        model: `owner/name` or `owner/name@revision`.

    Raises:
        StorageError: if the model does not exist, cannot be downloaded, or has no supported weights.
    """
    name, _, revision = model.partition("@")
    try:
        folder = _fetch(name, revision or None, _VOCABULARIES[0] + _WEIGHTS[0])
        for groups in (_VOCABULARIES, _WEIGHTS):
            for files in groups[1:]:
                if not _first(groups, folder):
                    _fetch(name, folder.name, files)  # the same commit, even if others are pushed meanwhile
    except Exception as error:  # includes errors of the HTTP library, which depends on the version
        raise StorageError(f"{model}: {_explain(name, revision, error)}") from error
    if not _first(_WEIGHTS, folder):
        expected = ", ".join(files[0] for files in _WEIGHTS)
        raise StorageError(f"{model}: it has no weights in a supported format ({expected})")
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
    """List the files of a snapshot that palm reads; other programs may have downloaded more."""
    always = [folder / name for name in _ALWAYS if (folder / name).is_file()]
    return [*always, *_first(_VOCABULARIES, folder), *_first(_WEIGHTS, folder)]


def _first(groups: Iterable[list[str]], folder: Path) -> list[Path]:
    """List the files of the first group that is complete in a folder; empty if there is none."""
    for group in groups:
        found = [sorted(folder.glob(pattern)) for pattern in group]
        if all(found):
            return [file for files in found for file in files]
    return []


def _explain(name: str, revision: str, error: Exception) -> str:
    """Describe a failed download and its remedy."""
    errors = huggingface_hub.errors
    constants = huggingface_hub.constants
    cache = Path(constants.HF_HUB_CACHE)
    server = constants.ENDPOINT
    cached = [folder.name.removeprefix("models--").replace("--", "/") for folder in cache.glob("models--*")]
    listed = [model.repository for model in MODELS.values() if model.repository]
    hint = did_you_mean(name, dict.fromkeys([*listed, *cached]).keys() - {name})
    if isinstance(error, errors.GatedRepoError):
        return f"access is restricted by its owner; accept the conditions at {server}/{name}, and {_LOG_IN}"
    if isinstance(error, errors.RepositoryNotFoundError):
        return f"{server} has no such model; if it is private, {_LOG_IN}{hint}"
    if isinstance(error, errors.RevisionNotFoundError):
        return f"{server} has no revision {revision!r} of it; use a branch, a tag or a commit, or none"
    if constants.HF_HUB_OFFLINE:
        return f"HF_HUB_OFFLINE is set, and {cache} lacks some files; unset it to download the model{hint}"
    cause = str(error.__cause__ or error).partition("\n")[0]
    if isinstance(error, errors.LocalEntryNotFoundError):
        return (
            f"{server} cannot be reached, and {cache} lacks some files ({cause}); check the connection, or "
            "set a mirror in the environment variable HF_ENDPOINT"
        )
    if isinstance(error, errors.HfHubHTTPError) and error.response.status_code in (401, 403):
        return f"{cause}; {_LOG_IN}"
    return f"{type(error).__name__}: {cause}; run the command again; complete files are kept"
