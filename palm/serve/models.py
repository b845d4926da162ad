"""The models behind a server, loaded again when their directories were replaced."""

from __future__ import annotations

import ast
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from palm.core.errors import PalmError, StorageError
from palm.core.io import MANIFEST, read_bytes
from palm.core.logging import logger
from palm.paradigm import HEADS
from palm.predict.inference import InferenceModel
from palm.predict.loading import load_model
from palm.reader import Record
from palm.train.model_card import example_input, label_names
from palm.train.model_paths import chosen_model
from palm.train.task_model import Chunk


@dataclass(frozen=True)
class EncodedTexts:
    chunks: Mapping[str, Chunk]

    @property
    def num_tokens(self) -> int:
        return sum(int(chunk.rows.lengths.sum()) for chunk in self.chunks.values())

    def cut(self, task: str) -> Sequence[int]:  # noqa: ARG002
        return ()


class SeparateModels:
    def __init__(self, models: Mapping[str, InferenceModel]) -> None:
        self.tasks = models

    def encode(self, texts: Sequence[Any], tasks: Sequence[str]) -> EncodedTexts:
        chunks = {}
        for task in tasks:
            reader = self.tasks[task].reader
            examples = list(reader.parse(texts))
            chunks[task] = Chunk(0, examples, reader.encode_usable(examples, with_targets=False))
        return EncodedTexts(chunks)

    def predict_rows(self, batch: Sequence[EncodedTexts]) -> list[list[dict[str, Record]]]:
        results = []
        for texts in batch:
            records = {
                task: [each.record for each in self.tasks[task].predictions([chunk])]
                for task, chunk in texts.chunks.items()
            }
            results.append(
                [dict(zip(records, each, strict=True)) for each in zip(*records.values(), strict=True)]
            )
        return results


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

    def __init__(self, folders: Sequence[str | Path], **options: Any) -> None:
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

    def _load(self) -> SeparateModels:
        models: dict[str, InferenceModel] = {}
        for folder in self._folders:
            model = load_model(folder, **self._options)
            if model.task in models:
                raise StorageError(
                    f"{folder}: another directory has a task {model.task!r}, too; serve it alone"
                )
            models[model.task] = model
        loaded = SeparateModels(models)
        for task in models:  # the first batch builds what later ones reuse
            loaded.predict_rows([loaded.encode(examples(models[task]), [task])])
        return loaded


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
