"""An encoder with one head as one function of what a reader gives, whose shapes no value decides."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor, nn

from palm.backbone import Backbone
from palm.backbone.encoder import Encoder
from palm.backbone.packing import Padded
from palm.core.errors import PalmError
from palm.core.numerics.rng import generator
from palm.core.tensor_specs import Specs, Tensors, as_declared
from palm.paradigm import Head
from palm.reader import Reader


def padded_features(backbone: Backbone, batch: Tensors, wanted: Sequence[str]) -> Tensors:
    """What `backbone(batch, wanted)` gives, with the padding left in place: packing depends on values."""
    if isinstance(backbone, Encoder):
        return backbone.features(batch, Padded.of(batch["input_mask"]), wanted)
    features: Tensors = backbone(as_declared(batch, backbone.inputs_attr), wanted)
    return features


class BatchGraph(nn.Module):
    """All outputs of a head, those too that only decoding reads, of a reader's batch as it is.

    Args:
        backbone: the encoder.
        head: on the encoder.
        given: what batches of the reader have, `reader.outputs_attr`.

    Attributes:
        inputs: what the graph reads, by its name in a batch; masks are int64 in the graph.
        outputs: name in the graph -> that of the head's output.

    Raises:
        PalmError: the backbone or the head reads something of another kind.
    """

    def __init__(self, backbone: Backbone, head: Head, given: Specs) -> None:
        super().__init__()
        self.backbone, self.head = backbone, head
        read = [name for name in head.inputs_attr if name not in backbone.outputs_attr]
        needed = dict.fromkeys([*backbone.inputs_attr, *read])
        self.inputs = {name: given[name] for name in needed if name in given}
        missing = [name for name in needed if name not in given]
        strange = [name for name, spec in self.inputs.items() if spec.dtype not in (torch.long, torch.bool)]
        for name in missing + strange:
            raise PalmError(
                f"an ONNX graph has no input {name!r}, which {type(head).__name__} or its backbone reads"
            )
        # An output may be called like an input in a head, but not in a graph.
        self.outputs = {f"output.{name}": name for name in head.outputs_attr}

    def forward(self, inputs: Tensors) -> tuple[Tensor, ...]:
        """The outputs in the order of `outputs`.

        Args:
            inputs: every name of `self.inputs`, int64.
        """
        batch = {name: inputs[name].to(spec.dtype) for name, spec in self.inputs.items()}
        wanted = [name for name in self.head.inputs_attr if name in self.backbone.outputs_attr]
        features = {**batch, **padded_features(self.backbone, batch, wanted)}
        taken = {name: features[name] for name in self.head.inputs_attr}
        outputs = self.head(as_declared(taken, self.head.inputs_attr))
        return tuple(outputs[name] for name in self.outputs.values())


def made_up_batch(reader: Reader, num_rows: int) -> Tensors:
    """Random tokens and lengths, with everything that any reader of palm's gives."""
    draw = generator(0, "export")
    shape = (num_rows, reader.settings["max_seq_len"])
    lengths = draw.integers(1, shape[1] + 1, (num_rows, 1))
    mask = torch.from_numpy(np.arange(shape[1]) < lengths)
    return {
        "token_ids": torch.from_numpy(draw.integers(reader.vocab_size, size=shape)),
        "position_ids": torch.arange(shape[1]) * mask,
        "segment_ids": torch.from_numpy(np.arange(shape[1]) * 2 > lengths) * mask.long(),
        "task_ids": reader.settings.get("task_id", 0) * mask.long(),
        "input_mask": mask,
        "word_mask": mask,
        "mask_pos": torch.arange(num_rows) * shape[1],
    }
