"""Pretrained weights of Hugging Face, Paddle and palm models."""

from palm.pretrained.directory import ModelDirectory, load_backbone, read_directory
from palm.pretrained.files import read_weights
from palm.pretrained.loading import Report, load_pretrain
from palm.pretrained.names import from_ours, to_ours
from palm.pretrained.vocabularies import find_vocabulary, vocabulary_differences

__all__ = [
    "ModelDirectory",
    "Report",
    "find_vocabulary",
    "from_ours",
    "load_backbone",
    "load_pretrain",
    "read_directory",
    "read_weights",
    "to_ours",
    "vocabulary_differences",
]
