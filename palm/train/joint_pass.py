"""The forward pass of one or several tasks' batches, with as few passes of the encoder as possible."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate

import torch
from torch.nn import functional as F

from palm.backbone.base import Backbone
from palm.backbone.packing import joined_layout
from palm.core.numerics.precision import Precision, computing
from palm.core.tensor_specs import Tensors, as_declared
from palm.paradigm.base import Head

Names = Sequence[Sequence[str]]
"""Per batch, the features that its head reads."""


def joint_outputs(
    encoders: Sequence[Backbone],
    heads: Sequence[Head],
    batches: Sequence[Tensors],
    rows_of: Sequence[int],
    precision: Precision = "fp32",
) -> list[Tensors]:
    """Compute the outputs of the heads on their batches, which are encoded together if possible.

    Args:
        encoders: one per batch. Different encoders, and encoders whose inputs or features are not padded
            rows of tokens, encode batch by batch.
        heads: one per batch; each reads its features as it declares them, in float32 with any precision.
        batches: the batches, on the device of encoders and heads.
        rows_of: per batch, the index of the first batch with the same rows, which are encoded once.
        precision: fp32 or bf16.

    Returns:
        The outputs of each head.
    """
    device = next(iter(batches[0].values())).device
    wanted = [
        [name for name in head.inputs_attr if name in encoder.outputs_attr]
        for encoder, head in zip(encoders, heads, strict=True)
    ]
    batches = [as_declared(batch, encoders[0].inputs_attr) for batch in batches]
    with computing(precision, device):
        if all(each is encoders[0] for each in encoders) and _can_be_joined(encoders[0], wanted, rows_of):
            features = _encode_together(encoders[0], wanted, batches, rows_of)
        else:
            features = _encode_separately(encoders, wanted, batches, rows_of)
    outputs = []
    for head, batch, encoded in zip(heads, batches, features, strict=True):
        # Inputs of a head that are not features of the encoder, such as positions of masked tokens, are taken
        # from the batch.
        specs = head.inputs_attr
        taken = {n: encoded[n].to(spec.dtype) if n in encoded else batch[n] for n, spec in specs.items()}
        with computing(precision if head.computes_in_bf16 else "fp32", device):
            outputs.append(head(as_declared(taken, specs)))
    return outputs


def _can_be_joined(backbone: Backbone, wanted: Names, rows_of: Sequence[int]) -> bool:
    """Check whether rows of several batches can be padded to one length and encoded as one batch."""
    read = {name for names in wanted for name in names}
    inputs = backbone.inputs_attr
    takes_rows = "input_mask" in inputs and all(spec.shape == ("batch", "seq") for spec in inputs.values())
    shapes = [backbone.outputs_attr[name].shape for name in read]
    gives_rows = all(shape[0] == "batch" or not {"batch", "seq"} & {*shape} for shape in shapes)
    # A feature whose first dimension is not the batch could not be split into batches again.
    return len(set(rows_of)) > 1 and takes_rows and gives_rows


def _encode_separately(
    encoders: Sequence[Backbone], wanted: Names, batches: Sequence[Tensors], rows_of: Sequence[int]
) -> list[Tensors]:
    """Encode batch by batch, but equal rows only once per encoder."""
    # Ids can serve as keys, because `encoders` keeps all of them alive.
    keys = [(rows, id(encoder)) for rows, encoder in zip(rows_of, encoders, strict=True)]
    passes: dict[tuple[int, int], Tensors] = {}
    for key, encoder, batch in zip(keys, encoders, batches, strict=True):
        if key not in passes:
            read = {name for other, names in zip(keys, wanted, strict=True) if other == key for name in names}
            passes[key] = encoder(batch, sorted(read))
    return [passes[key] for key in keys]


def _encode_together(
    backbone: Backbone, wanted: Names, batches: Sequence[Tensors], rows_of: Sequence[int]
) -> list[Tensors]:
    """Encode all rows in one pass."""
    distinct = sorted(set(rows_of))
    # Padding has no effect, and a packed encoder does not compute it, so two batches of 16 rows cost as much
    # as one of 32 even if their lengths differ.
    sizes = {k: tuple(batches[k]["input_mask"].shape) for k in distinct}
    longest = max(columns for _, columns in sizes.values())
    joined = {
        name: torch.cat([F.pad(batches[k][name], (0, longest - sizes[k][1])) for k in distinct])
        for name in backbone.inputs_attr
    }
    if backbone.is_packed:
        joined |= joined_layout([batches[k] for k in distinct], longest)
    ends = dict(zip(distinct, accumulate(rows for rows, _ in sizes.values()), strict=True))
    rows = [slice(ends[k] - sizes[k][0], ends[k]) for k in rows_of]
    encoded = backbone(joined, sorted({name for names in wanted for name in names}))
    return [_of_rows(backbone, encoded, own, sizes[k][1]) for own, k in zip(rows, rows_of, strict=True)]


def _of_rows(backbone: Backbone, features: Tensors, rows: slice, columns: int) -> Tensors:
    """Slice features to some rows and columns; a table, which has no rows, is returned whole."""
    own = {}
    for name, value in features.items():
        shape = backbone.outputs_attr[name].shape
        value = value[rows] if shape[0] == "batch" else value
        # Sliced to the batch's longest row, so the head sees the same as with a separate pass.
        own[name] = value[:, :columns] if shape[:2] == ("batch", "seq") else value
    return own
