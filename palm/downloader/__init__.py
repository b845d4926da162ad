"""Published pretrained models, from their names to folders that palm can read."""

from typing import TYPE_CHECKING, Any

from palm.downloader.items import download, ls
from palm.downloader.models import MODELS, Model

if TYPE_CHECKING:
    from palm.downloader.hub import load_backbone, pretrained_directory

__all__ = ["MODELS", "Model", "download", "load_backbone", "ls", "pretrained_directory"]


def __getattr__(name: str) -> Any:
    """Import what needs torch at its first use; a list of models does not wait for it."""
    if name not in __all__:
        raise AttributeError(f"module 'palm.downloader' has no attribute {name!r}")
    from palm.downloader import hub

    return getattr(hub, name)
