"""The models behind a server, loaded again when their directories were replaced."""

from __future__ import annotations

import ast
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from palm.core.errors import PalmError, StorageError
from palm.core.io import MANIFEST, read_bytes
from palm.core.logging import logger
from palm.paradigm import HEADS
from palm.predict.inference import InferenceModel, JointModel
from palm.predict.loading import load_models
from palm.train.model_card import example_input, label_names
from palm.train.model_paths import chosen_model


class ModelSource:
    """The directories of a server, and the model of all their tasks.

    Args:
        folders: saved models, or runs.
        options: those of `palm.load_model`.

    Attributes:
        model: the model that answers new requests.

    Raises:
        StorageError: a directory is damaged, or two have a task of the same name.
    """

    def __init__(self, folders: Sequence[str | Path], options: Mapping[str, Any]) -> None:
        self._folders = [Path(folder) for folder in folders]
        self._options = options
        self._loaded = self._manifests()
        self.model = self._load()

    def reload(self) -> bool:
        """Load the directories again if one was replaced; return True if there is a new model.

        The old model stays if the new one cannot be loaded, which is logged.
        """
        try:
            found = self._manifests()
            if found == self._loaded:
                return False
            model = self._load()
            if self._manifests() != found:  # replaced while it was read: the next call reads it
                return False
        except PalmError as error:
            logger.warning("the model stays as it is: %s", error)
            return False
        self._loaded = found
        self.model = model
        logger.info("new model: %s", ", ".join(model.tasks))
        return True

    def _manifests(self) -> list[bytes]:
        return [read_bytes(chosen_model(folder) / MANIFEST) for folder in self._folders]

    def _load(self) -> JointModel:
        tasks: dict[str, InferenceModel] = {}
        for folder in self._folders:
            own = load_models(folder, **self._options).tasks
            if both := sorted(tasks.keys() & own.keys()):
                raise StorageError(f"{folder}: another directory has {both[0]!r}, too; serve it by itself")
            tasks |= own
        model = JointModel(tasks)
        for task, each in tasks.items():  # the first batch makes what later ones reuse
            model.predict_rows(model.encode(examples(each), [task]))
        return model


def examples(model: InferenceModel) -> list[Any]:
    """Return texts that the task's `predict` accepts, as in its model card."""
    return list(ast.literal_eval(example_input(model.reader, HEADS.name_of(type(model.head)))))


def described(model: InferenceModel) -> dict[str, Any]:
    """Describe a task for those who send it texts."""
    return {
        "kind": HEADS.name_of(type(model.head)),
        "labels": label_names(model.reader, model.head),
        "max_seq_len": getattr(model.reader, "max_seq_len", None),
        "example": examples(model)[0],
    }
