"""Several tasks' batches through the encoder in one pass, and every head on its own rows of the features."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate

import torch
from torch.nn import functional as F

from palm.backbone.base import Backbone
from palm.backbone.encoder import Branch, Encoder
from palm.core.numerics.precision import Precision, computing
from palm.core.tensor_specs import Tensors
from palm.paradigm.base import Head


def joint_outputs(
    encoders: Sequence[Backbone],
    heads: Sequence[Head],
    batches: Sequence[Tensors],
    rows_of: Sequence[int],
    precision: Precision = "fp32",
    depth: int = 0,
) -> list[Tensors]:
    """What the heads make of their batches, which are encoded together.

    Args:
        encoders: one per batch, the same one or such as have their lower layers in common; they compute in
            `precision`. Those that do not take padded rows of tokens, or give features of another form,
            encode batch by batch.
        heads: one per batch.
        batches: on the device of all of them.
        rows_of: per batch the first batch that has the same rows; they are encoded once.
        precision: fp32 or bf16.
        depth: the number of layers that are common, from the top (-2: all but two), where some are not.

    Returns:
        Per batch the outputs of its head.
    """
    backbone, device = encoders[0], next(iter(batches[0].values())).device
    with computing(precision, device):
        features = _features(encoders, heads, batches, rows_of, depth)
    outputs = []
    for head, batch, encoded in zip(heads, batches, features, strict=True):
        declared = {n: spec.dtype for n, spec in head.inputs_attr.items() if n in backbone.outputs_attr}
        own = {**batch, **{name: encoded[name].to(dtype) for name, dtype in declared.items()}}
        with computing(precision if head.computes_in_bf16 else "fp32", device):
            outputs.append(head({name: own[name] for name in head.inputs_attr}))
    return outputs


def _features(
    encoders: Sequence[Backbone],
    heads: Sequence[Head],
    batches: Sequence[Tensors],
    rows_of: Sequence[int],
    depth: int,
) -> list[Tensors]:
    """Per batch what its encoder gives, in as few passes as can be; equal rows are encoded once."""
    backbone, firsts = encoders[0], sorted(set(rows_of))
    wanted = sorted({name for head in heads for name in head.inputs_attr if name in backbone.outputs_attr})
    if depth and "word_embedding" not in wanted:
        return _branched(encoders, heads, batches, rows_of, depth)
    if depth:
        return [
            own(batch, [name for name in head.inputs_attr if name in own.outputs_attr])
            for own, batch, head in zip(encoders, batches, heads, strict=True)
        ]
    takes_rows = all(spec.shape == ("batch", "seq") for spec in backbone.inputs_attr.values())
    declared = [backbone.outputs_attr[name].shape for name in wanted]
    gives_rows = all(shape[0] == "batch" or not {"batch", "seq"} & {*shape} for shape in declared)
    if len(firsts) > 1 and takes_rows and gives_rows and "input_mask" in backbone.inputs_attr:
        # Rows of several batches, padded to one length, are one batch for such a backbone.
        joined, sizes, ends = _joined(backbone, [batches[k] for k in firsts])
        together = backbone(joined, wanted)
        found = [_own_rows(backbone, together, size, end) for size, end in zip(sizes, ends, strict=True)]
    else:
        found = []
        for first in firsts:
            readers = [head for head, rows in zip(heads, rows_of, strict=True) if rows == first]
            read = [name for name in wanted if any(name in head.inputs_attr for head in readers)]
            found.append(backbone(batches[first], read))
    return [found[firsts.index(k)] for k in rows_of]


def _branched(
    encoders: Sequence[Backbone],
    heads: Sequence[Head],
    batches: Sequence[Tensors],
    rows_of: Sequence[int],
    depth: int,
) -> list[Tensors]:
    """The features of encoders with upper layers of their own: the lower ones run once, on all rows."""
    base, firsts = encoders[0], sorted(set(rows_of))
    assert isinstance(base, Encoder)
    joined, sizes, ends = _joined(base, [batches[k] for k in firsts])
    branches = []
    for encoder, head, first in zip(encoders, heads, rows_of, strict=True):
        assert isinstance(encoder, Encoder)
        (rows, _), end = sizes[firsts.index(first)], ends[firsts.index(first)]
        wanted = [name for name in head.inputs_attr if name in encoder.outputs_attr]
        branches.append(Branch(slice(end - rows, end), encoder, wanted))
    found = base.branched(joined, branches, len(base.layers) + depth)
    return [
        _own_rows(base, features, (rows, sizes[firsts.index(first)][1]), rows)
        for features, first in zip(found, rows_of, strict=True)
        for rows in [sizes[firsts.index(first)][0]]
    ]


def _joined(
    backbone: Backbone, batches: Sequence[Tensors]
) -> tuple[Tensors, list[tuple[int, int]], list[int]]:
    """The inputs of all batches as one, the rows and columns of each, and where its rows end."""
    # What stands in padding has no effect, and an encoder that packs does not compute it: two batches of 16
    # rows cost what one of 32 does, though one may have far longer rows.
    sizes = [(rows, columns) for rows, columns in (batch["input_mask"].shape for batch in batches)]
    longest = max(columns for _, columns in sizes)
    joined = {
        name: torch.cat([F.pad(batch[name], (0, longest - batch[name].shape[1])) for batch in batches])
        for name in backbone.inputs_attr
    }
    return joined, sizes, list(accumulate(rows for rows, _ in sizes))


def _own_rows(backbone: Backbone, features: Tensors, size: tuple[int, int], end: int) -> Tensors:
    """What of features belongs to a batch of so many rows and columns, whose rows end there."""
    (rows, columns), own = size, {}
    for name, value in features.items():
        shape = backbone.outputs_attr[name].shape
        if shape[0] != "batch":  # what has no rows, such as a table, belongs to all
            own[name] = value
        elif shape[1:2] == ("seq",):
            own[name] = value[end - rows : end, :columns]
        else:
            own[name] = value[end - rows : end]
    return own
