"""Config-driven multi-task training on one shared BERT or ERNIE encoder."""

from importlib import import_module
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any

from palm.core.errors import ConfigError, DataError, PalmError, StorageError, TrainingError, WiringError
from palm.core.process import allow_forks, limit_spinning
from palm.core.version import __version__

limit_spinning()  # before torch is imported, because OpenMP reads the setting only once
allow_forks()

if TYPE_CHECKING:
    from palm import (
        backbone,
        export,
        metrics,
        mixing,
        optimizer,
        reader,
    )
    from palm.compat import MultiHeadTrainer, Trainer, distribute, downloader, head
    from palm.controller.controller import Controller
    from palm.experiments.compare import compare
    from palm.experiments.sweep import sweep
    from palm.export.hugging_face import convert
    from palm.optimizer import lr_sched
    from palm.predict.inference import InferenceModel, JointModel
    from palm.predict.loading import load_model
    from palm.pretrained.loading import load_backbone
    from palm.report.inspection import inspect_directory
    from palm.report.page import write_report
    from palm.report.plot import plot
    from palm.serve.client import Client
    from palm.train.evaluation import Evaluator
    from palm.train.task import Task

_HOMES = {
    "Client": "palm.serve.client",
    "Controller": "palm.controller.controller",
    "Evaluator": "palm.train.evaluation",
    "InferenceModel": "palm.predict.inference",
    "JointModel": "palm.predict.inference",
    "MultiHeadTrainer": "palm.compat",
    "Task": "palm.train.task",
    "Trainer": "palm.compat",
    "compare": "palm.experiments.compare",
    "convert": "palm.export.hugging_face",
    "distribute": "palm.compat",
    "downloader": "palm.compat",
    "head": "palm.compat",
    "inspect_directory": "palm.report.inspection",
    "load_backbone": "palm.pretrained.loading",
    "load_model": "palm.predict.loading",
    "lr_sched": "palm.optimizer",
    "plot": "palm.report.plot",
    "sweep": "palm.experiments.sweep",
    "write_report": "palm.report.page",
}
"""Name -> module, imported at the first use: most need torch, which takes a second to import."""

__all__ = [
    "Client",
    "ConfigError",
    "Controller",
    "DataError",
    "Evaluator",
    "InferenceModel",
    "JointModel",
    "MultiHeadTrainer",
    "PalmError",
    "StorageError",
    "Task",
    "Trainer",
    "TrainingError",
    "WiringError",
    "__version__",
    "backbone",
    "compare",
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
    "plot",
    "reader",
    "sweep",
    "write_report",
]


def __getattr__(name: str) -> Any:
    """Return `palm.<name>`: one of the names above, or a package of palm."""
    if name in _HOMES:
        value = getattr(import_module(_HOMES[name]), name)
    elif not name.startswith("_") and find_spec(f"palm.{name}"):
        value = import_module(f"palm.{name}")
    else:
        raise AttributeError(f"module 'palm' has no attribute {name!r}")
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
