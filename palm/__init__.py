"""Config-driven multi-task training on one shared BERT or ERNIE encoder."""

from palm.core.version import __version__  # isort: skip
from palm import backbone, distribute, downloader, export, head, lr_sched, metrics, mixing, optimizer, reader
from palm.controller import Controller
from palm.core.errors import ConfigError, DataError, PalmError, StorageError, TrainingError, WiringError
from palm.downloader import load_backbone
from palm.engine.evaluation import Evaluator
from palm.engine.inference import InferenceModel, load_model
from palm.engine.task import Task
from palm.export.convert import convert
from palm.export.inspection import inspect_directory
from palm.trainer import Trainer
from palm.trainer.multi_head import MultiHeadTrainer

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
