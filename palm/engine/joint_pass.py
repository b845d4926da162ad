"""Several tasks' batches through the encoder in one pass, and every head on its own rows of the features."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate

import torch
from torch.nn import functional as F

from palm.backbone.base import Backbone
from palm.core.contract import Tensors, TensorSpec
from palm.core.precision import Precision, computing
from palm.paradigm.base import Head


def joint_outputs(
    backbone: Backbone,
    heads: Sequence[Head],
    batches: Sequence[Tensors],
    rows_of: Sequence[int],
    precision: Precision = "fp32",
) -> list[Tensors]:
    """What the heads make of their batches, which are encoded together.

    Args:
        backbone: computes in `precision`; one that does not take padded rows of tokens, or gives features
            of another form, encodes batch by batch.
        heads: one per batch.
        batches: on the device of all of them.
        rows_of: per batch the first batch that has the same rows; they are encoded once.
        precision: fp32 or bf16.

    Returns:
        Per batch the outputs of its head.
    """
    device = next(iter(batches[0].values())).device
    wanted = {name for head in heads for name in head.inputs_attr if name in backbone.outputs_attr}
    firsts = sorted(set(rows_of))
    with computing(precision, device):
        if len(firsts) > 1 and _can_join(backbone, wanted):
            found = _encoded_together(backbone, [batches[k] for k in firsts], sorted(wanted))
        else:
            found = [backbone(batches[k], _of_these(wanted, heads, rows_of, k)) for k in firsts]
    features = dict(zip(firsts, found, strict=True))
    outputs = []
    for head, batch, first in zip(heads, batches, rows_of, strict=True):
        declared = {n: spec.dtype for n, spec in head.inputs_attr.items() if n in backbone.outputs_attr}
        own = {**batch, **{name: features[first][name].to(dtype) for name, dtype in declared.items()}}
        with computing(precision if head.computes_in_bf16 else "fp32", device):
            outputs.append(head({name: own[name] for name in head.inputs_attr}))
    return outputs


def _of_these(wanted: set[str], heads: Sequence[Head], rows_of: Sequence[int], first: int) -> list[str]:
    """The features that the heads on one set of rows read."""
    readers = [head for head, rows in zip(heads, rows_of, strict=True) if rows == first]
    return [name for name in sorted(wanted) if any(name in head.inputs_attr for head in readers)]


def _can_join(backbone: Backbone, wanted: set[str]) -> bool:
    """Whether rows of several batches, padded to one length, are one batch for the backbone."""
    takes_rows = all(spec.shape == ("batch", "seq") for spec in backbone.inputs_attr.values())
    declared = [backbone.outputs_attr[name].shape for name in wanted]
    gives_rows = all(shape[0] == "batch" or not {"batch", "seq"} & {*shape} for shape in declared)
    return takes_rows and gives_rows and "input_mask" in backbone.inputs_attr


def _encoded_together(backbone: Backbone, batches: Sequence[Tensors], wanted: Sequence[str]) -> list[Tensors]:
    # What stands in padding has no effect, and an encoder that packs does not compute it: two batches of 16
    # rows cost what one of 32 does, though one may have far longer rows.
    sizes = [batch["input_mask"].shape for batch in batches]
    longest = max(columns for _, columns in sizes)
    joined = {
        name: torch.cat([F.pad(batch[name], (0, longest - batch[name].shape[1])) for batch in batches])
        for name in backbone.inputs_attr
    }
    features = backbone(joined, wanted)
    ends = accumulate(rows for rows, _ in sizes)
    return [
        {
            name: _own_part(value, backbone.outputs_attr[name], slice(end - rows, end), columns)
            for name, value in features.items()
        }
        for (rows, columns), end in zip(sizes, ends, strict=True)
    ]


def _own_part(value: torch.Tensor, spec: TensorSpec, rows: slice, columns: int) -> torch.Tensor:
    """What of a feature belongs to some rows; what has no rows, such as a table, belongs to all."""
    if spec.shape[0] != "batch":
        return value
    return value[rows, :columns] if spec.shape[1:2] == ("seq",) else value[rows]
