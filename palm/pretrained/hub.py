"""Models on the Hugging Face Hub, fetched by its own library."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import huggingface_hub  # its contents, including the HTTP library, are loaded on first use

from palm.core.errors import StorageError
from palm.core.version import __version__
from palm.pretrained.directory import FILES, encoder_folder

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
        for files in ([*FILES, *WEIGHTS[0]], *WEIGHTS[1:]):
            found = _fetch(name, revision, folder, files)
            if _has_weights(encoder_folder(found)):
                return found
    except Exception as error:  # includes errors of the HTTP library, which depends on the version
        raise StorageError(f"{model}: {_explain(name, revision, error)}") from error
    expected = ", ".join(files[0] for files in WEIGHTS)
    raise StorageError(f"{model}: it has no weights in a supported format ({expected})")


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
