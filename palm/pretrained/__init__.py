"""Pretrained weights of Hugging Face, Paddle and palm models."""

from palm.pretrained.directory import (
    find_vocabulary,
    read_directory,
    read_weights,
    vocabulary_differences,
)
from palm.pretrained.loading import (
    Report,
    load_backbone,
    load_pretrain,
    pretrained_directory,
    resolve_pooling,
)
from palm.pretrained.names import from_ours, to_ours

__all__ = [
    "Report",
    "find_vocabulary",
    "from_ours",
    "load_backbone",
    "load_pretrain",
    "pretrained_directory",
    "read_directory",
    "read_weights",
    "resolve_pooling",
    "to_ours",
    "vocabulary_differences",
]
