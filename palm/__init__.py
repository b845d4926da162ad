"""Config-driven multi-task training on one shared BERT or ERNIE encoder."""

from palm.version import __version__  # isort: skip
from palm import metrics
from palm.controller import Controller
from palm.errors import ConfigError, DataError, PalmError, StorageError, TrainingError, WiringError
from palm.inference import InferenceModel, load_model
from palm.pretrained import load_backbone

__all__ = [
    "ConfigError",
    "Controller",
    "DataError",
    "InferenceModel",
    "PalmError",
    "StorageError",
    "TrainingError",
    "WiringError",
    "__version__",
    "load_backbone",
    "load_model",
    "metrics",
]
