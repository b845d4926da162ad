"""The loss of every example as training would compute it, to find the hardest examples."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from contextlib import suppress
from statistics import fmean
from typing import Any

import numpy as np
import torch
from torch import Tensor

from palm.core.errors import DataError
from palm.core.tensor_specs import Tensors
from palm.predict.inference import InferenceModel
from palm.reader import Record, Rows
from palm.reader.chunks import chunks_of
from palm.reader.text.squad import SquadQuestion, answerable


def example_losses(model: InferenceModel, examples: Sequence[Any]) -> list[float | None]:
    """Return the loss of every example, the mean over its rows; None if training could not use it.

    All are None if the head's tensors cannot be split into rows (see `has_row_losses`).

    Args:
        model: of the task.
        examples: as returned by `Reader.read_gold`.
    """
    usable = {}
    for number, each in enumerate(examples if has_row_losses(model) else ()):
        with suppress(DataError):  # training uses only the answers that are where the file says they are
            has_answers = isinstance(each, SquadQuestion) and each.answers
            usable[number] = answerable(each) if has_answers else each
    losses: dict[int, list[float]] = {number: [] for number in usable}
    if usable:
        rows = model.reader.encode(list(usable.values()), with_targets=True)
        by_length = np.argsort(rows.lengths, kind="stable").tolist()  # little padding, as in prediction
        numbers = list(usable)
        for indices in chunks_of(by_length, model.batch_size):
            for index, loss in zip(indices, _row_losses(model, rows, indices), strict=True):
                losses[numbers[int(rows["example"][index])]].append(loss)
    return [fmean(losses[number]) if losses.get(number) else None for number in range(len(examples))]


def has_row_losses(model: InferenceModel) -> bool:
    """Check whether the head's outputs and targets can be split into rows."""
    targets = model.head.targets_attr
    specs = [*model.head.outputs_attr.values(), *targets.values()]
    of_rows = all(spec.shape[:1] in (("batch",), ("examples",)) for spec in specs)
    return of_rows and bool(targets) and "is_negative" not in targets


def record_loss(record: Record) -> float | None:
    """Return the mean loss of a record's masked words, or the distance between a pair of embeddings."""
    if "embedding_b" in record:
        return 1 - float(record["value"])
    words = [word["log_prob"] for word in record.get("words", ()) if "log_prob" in word]
    return -fmean(words) if words else None


@torch.inference_mode()
def _row_losses(model: InferenceModel, rows: Rows, indices: Sequence[int]) -> list[float]:
    batch = model.batch(rows, indices)
    outputs = model.outputs(batch)
    targets = {name: batch[name].to(model.device) for name in model.head.targets_attr}
    losses = [
        model.head.loss(_row(outputs, model.head.outputs_attr, row), _row(targets, targets, row))
        for row in range(len(indices))
    ]
    values: list[float] = torch.stack(losses).float().tolist()
    return values


def _row(tensors: Tensors, names: Iterable[str], row: int) -> dict[str, Tensor]:
    """Return one row of a batch, as a batch."""
    return {name: tensors[name][row : row + 1] for name in names}
