"""Downloading published pretrained models by name."""

from palm.downloader.hub import load_backbone, pretrained_directory
from palm.downloader.items import download, ls
from palm.downloader.models import MODELS, Model

__all__ = ["MODELS", "Model", "download", "load_backbone", "ls", "pretrained_directory"]
