"""A pretrained encoder from its directory alone."""

from __future__ import annotations

from pathlib import Path

from palm.backbone import Backbone
from palm.pretrained.directory import read_directory
from palm.pretrained.loading import fill_backbone


def load_backbone(path: str | Path) -> Backbone:
    """The encoder of a model directory, ready to compute (in `eval()` mode).

    Args:
        path: a directory that Hugging Face, Google, PaddleNLP, PaddlePALM or palm wrote: weights, and a
            JSON file with the sizes beside them or, as beside PaddlePALM's `params`, one level up.

    Returns:
        A module that maps the inputs of its `inputs_attr`, a dictionary of tensors, to those of its
        `outputs_attr`.

    Raises:
        StorageError: files are missing or damaged, or of another kind of model.
        ConfigError: the JSON file's sizes are missing or wrong.
    """
    directory = read_directory(path)
    backbone = directory.build()
    fill_backbone(backbone, directory.given, directory.path)
    return backbone.eval()
