"""Whether an ONNX graph computes what PyTorch computes, on rows of a task's data."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import torch

from palm.core.errors import PalmError
from palm.core.numerics.rng import generator
from palm.core.tensor_specs import Tensors
from palm.engine.inference.inference import InferenceModel
from palm.engine.inference.onnx.graph import made_up_batch
from palm.engine.training.model import outputs_of
from palm.export.graph import INPUTS, Graph
from palm.export.sources import Trained

NUM_ROWS = 32
"""Rows that are compared."""


@dataclass(frozen=True)
class Check:
    """What was compared.

    Args:
        num_rows: how many rows.
        rows_of: where they come from.
        difference: the largest absolute difference of any output at a real token.
    """

    num_rows: int
    rows_of: str
    difference: float

    def __str__(self) -> str:
        return (
            f"differs from PyTorch by at most {self.difference:.1e} on {self.num_rows} rows of {self.rows_of}"
        )


@torch.no_grad()
def check_graph(session: Any, graph: Graph, trained: Trained, tolerance: float) -> Check:
    """Compare one task's outputs of an `onnxruntime` session with those of its PyTorch model.

    Args:
        session: of the exported graph.
        graph: the module that was exported.
        trained: the task, with the file of its rows; None for rows of made-up tokens.
        tolerance: the largest difference.

    Raises:
        PalmError: some output differs by more.
        DataError: a row of the file cannot be read.
    """
    model, data = trained.model, trained.data
    batch = made_up_batch(model.reader, NUM_ROWS) if data is None else _rows(model, data)
    expected = outputs_of(model.backbone.eval(), model.head.eval(), batch)
    outputs = graph.outputs(model.task)
    named = {INPUTS.get(name, name): value.long().numpy() for name, value in batch.items()}
    # An input that only other tasks read, such as the positions of masks, is empty.
    feed = {name: named.get(name, np.empty(0, np.int64)) for name in graph.input_names}
    given = session.run([name for name, _ in outputs], feed)
    mask, differences = batch["input_mask"], []
    for (_, own), array in zip(outputs, given, strict=True):
        ours, theirs = expected[own], torch.from_numpy(array)
        if ours.shape != theirs.shape:
            differences.append(float("inf"))
            continue
        # Outputs of single tokens count where there is no padding.
        apart = (ours - theirs)[mask] if ours.shape[:2] == mask.shape else ours - theirs
        differences.append(float(apart.abs().max()))
    check = Check(len(mask), "made-up tokens" if data is None else str(data), max(differences))
    if not check.difference <= tolerance:
        raise PalmError(
            f"task {model.task!r}: the ONNX graph {check}; more than {tolerance:.1e} is not equal. "
            "Nothing was written"
        )
    return check


def _rows(model: InferenceModel, data: Path) -> Tensors:
    examples = list(islice(model.reader.read(data, with_targets=False), NUM_ROWS))
    rows = model.reader.encode(examples, with_targets=False)
    indices = range(min(len(rows), NUM_ROWS))
    return model.reader.collate(rows, indices, lambda row: generator(0, "export", model.task, row))
