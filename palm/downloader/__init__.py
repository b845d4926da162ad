"""Published pretrained models, from their names to folders that palm can read."""

from palm.downloader.items import download, ls
from palm.downloader.models import MODELS, Model

__all__ = ["MODELS", "Model", "download", "ls"]
