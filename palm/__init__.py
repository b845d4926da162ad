"""Config-driven multi-task training on one shared BERT or ERNIE encoder."""

from palm.version import __version__  # isort: skip
from palm import backbone, distribute, downloader, export, head, lr_sched, metrics, mixing, optimizer, reader
from palm.controller import Controller
from palm.conversion import convert
from palm.errors import ConfigError, DataError, PalmError, StorageError, TrainingError, WiringError
from palm.evaluation import Evaluator
from palm.inference import InferenceModel, load_model
from palm.inspection import inspect_directory
from palm.multi_head_trainer import MultiHeadTrainer
from palm.pretrained import load_backbone
from palm.task import Task
from palm.trainer import Trainer

__all__ = [
    "ConfigError",
    "Controller",
    "DataError",
    "Evaluator",
    "InferenceModel",
    "MultiHeadTrainer",
    "PalmError",
    "StorageError",
    "Task",
    "Trainer",
    "TrainingError",
    "WiringError",
    "__version__",
    "backbone",
    "convert",
    "distribute",
    "downloader",
    "export",
    "head",
    "inspect_directory",
    "load_backbone",
    "load_model",
    "lr_sched",
    "metrics",
    "mixing",
    "optimizer",
    "reader",
]
