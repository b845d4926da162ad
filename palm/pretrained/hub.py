"""Names of pretrained models: a path, or a model on the Hugging Face Hub, fetched by its own library."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import huggingface_hub  # its contents, including the HTTP library, are loaded on first use

from palm.backbone import Backbone
from palm.config.files import names_model
from palm.core.cache import explain_limits
from palm.core.component import path_problems, raise_any
from palm.core.errors import StorageError
from palm.core.io import is_sealed, verify
from palm.core.version import __version__
from palm.pretrained.directory import (
    FILES,
    encoder_folder,
    find_config,
    read_directory,
    settings_of_directory,
)
from palm.pretrained.loading import fill_backbone

if TYPE_CHECKING:
    import huggingface_hub.constants
    import huggingface_hub.errors

WEIGHTS = (
    ["model.safetensors"],
    ["model.safetensors.index.json", "model-*.safetensors"],
    ["pytorch_model.bin"],
    ["pytorch_model.bin.index.json", "pytorch_model-*.bin"],
    ["model_state.pdparams"],
)
"""Groups of weight files in palm's order of preference; the first complete one of a repository is fetched."""

_LOG_IN = "log in with `hf auth login`, or set HF_TOKEN"


def pretrained_directory(value: str | Path) -> Path:
    """Return the directory of a model: the given path, or the snapshot of a model on the Hub.

    A snapshot is downloaded if necessary; the last part of its path is the commit. PaddlePALM's `params`
    means the model's folder if only that exists, as in a download from the Hub.

    Raises:
        StorageError: if neither such a folder nor such a model exists.
    """
    raise_any(path_problems(path=value))
    path = Path(value)
    name = path.as_posix() if isinstance(value, Path) else value
    if names_model(name, Path()):
        try:
            return encoder_folder(fetch(name))
        except StorageError as error:
            raise StorageError(f"no such folder: {path.absolute()}; model {error}") from error
    if path.name == "params" and not path.exists() and find_config(path):
        return path.parent
    if path.parent.name == "pretrain" and not path.exists():
        raise StorageError(
            f"no such folder: {path.absolute()}; `palm download {path.name}` creates it in ./pretrain"
        )
    return encoder_folder(path)


def settings_of_model(value: str | Path) -> dict[str, Any]:
    """Call `settings_of_directory` for a path or a model on the Hub, see `pretrained_directory`.

    Returns:
        The settings; for a model on the Hub also `pretrain_path`, its name with the commit.
    """
    folder = pretrained_directory(value)
    found = settings_of_directory(folder)
    snapshot = next((part for part in (folder, folder.parent) if part.parent.name == "snapshots"), None)
    if snapshot is None:
        return found
    return {**found, "pretrain_path": f"{str(value).partition('@')[0]}@{snapshot.name}"}


@explain_limits()
def load_backbone(path: str | Path) -> Backbone:
    """Load the encoder of a model directory, or of a model on the Hugging Face Hub, in `eval()` mode.

    Args:
        path: a directory of Hugging Face, PaddleNLP, PaddlePALM or palm: weights, and a JSON file with the
            sizes beside them or, as with PaddlePALM's `params`, one level up; or `owner/name` or
            `owner/name@revision` of a model on the Hub.

    Returns:
        A module that maps a dictionary of the tensors of `inputs_attr` to those of `outputs_attr`.

    Raises:
        StorageError: if files are missing or damaged, or belong to another kind of model.
        ConfigError: if sizes are missing or invalid in the JSON file.
    """
    path = pretrained_directory(path)
    if is_sealed(path):
        verify(path)
    directory = read_directory(path)
    backbone = directory.build()
    fill_backbone(backbone, directory.given, directory.path)
    return backbone.eval()


def fetch(model: str, folder: Path | None = None) -> Path:
    """Fetch the files of a model that palm reads to Hugging Face's cache, or to a folder; return the folder.

    Files that are already there are not fetched again, and interrupted ones are continued.

    Args:
        model: `owner/name` or `owner/name@revision`.
        folder: None for the cache.

    Raises:
        StorageError: if the model does not exist, cannot be fetched, or has no weights in a known format.
    """
    name, _, revision = model.partition("@")
    try:
        found = _fetch(name, revision, folder, [*FILES, *WEIGHTS[0]])
        for files in WEIGHTS[1:]:
            if not _has_weights(encoder_folder(found)):
                found = _fetch(name, revision, folder, files)
    except Exception as error:  # includes errors of the HTTP library, which depends on the version
        raise StorageError(f"{model}: {_explain(name, revision, error)}") from error
    if not _has_weights(encoder_folder(found)):
        expected = ", ".join(files[0] for files in WEIGHTS)
        raise StorageError(f"{model}: it has no weights in a supported format ({expected})")
    return found


def _fetch(name: str, revision: str, folder: Path | None, files: list[str]) -> Path:
    path = huggingface_hub.snapshot_download(
        name,
        revision=revision or None,
        local_dir=folder,
        allow_patterns=[*files, *(f"0_Transformer/{name}" for name in files)],
        library_name="palm",
        library_version=__version__,
    )
    return Path(path)


def _has_weights(folder: Path) -> bool:
    return any(all(any(folder.glob(pattern)) for pattern in group) for group in WEIGHTS)


def _explain(name: str, revision: str, error: Exception) -> str:
    """Describe a failed download and its remedy."""
    errors = huggingface_hub.errors
    constants = huggingface_hub.constants
    server = constants.ENDPOINT
    cause = str(error.__cause__ or error).partition("\n")[0]
    if isinstance(error, errors.GatedRepoError):
        return f"access is restricted by its owner; accept the conditions at {server}/{name}, and {_LOG_IN}"
    if isinstance(error, errors.RepositoryNotFoundError):
        return f"{server} has no such model; if it is private, {_LOG_IN}"
    if isinstance(error, errors.RevisionNotFoundError):
        return f"{server} has no revision {revision!r} of it; use a branch, a tag or a commit, or none"
    if constants.HF_HUB_OFFLINE:
        return f"HF_HUB_OFFLINE is set, and {constants.HF_HUB_CACHE} lacks some files; unset it to get them"
    if isinstance(error, errors.LocalEntryNotFoundError):
        return (
            f"{server} cannot be reached ({cause}); check the connection, or set a mirror in the environment "
            "variable HF_ENDPOINT"
        )
    return f"{type(error).__name__}: {cause}; if it is private, {_LOG_IN}; complete files are kept"
