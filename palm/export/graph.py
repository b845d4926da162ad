"""An encoder with its heads as one function of token ids, whose shapes no value decides."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor, nn

from palm.backbone import Backbone
from palm.core.errors import PalmError
from palm.core.tensor_specs import Tensors
from palm.engine.inference.onnx.graph import padded_features
from palm.paradigm import Head

INPUTS = {"token_ids": "input_ids", "input_mask": "attention_mask", "segment_ids": "token_type_ids"}
"""Our name -> the input's name in the graph, which is Hugging Face's; other inputs keep our name."""

_MADE = ("position_ids", "task_ids", "word_mask")
"""What a reader gives and the graph makes itself: no caller has to know it."""


class Graph(nn.Module):
    """What is exported.

    Args:
        backbone: the encoder that all heads share.
        heads: task -> its head.
        task_id: what ERNIE's task embedding gets.

    Attributes:
        input_names: of the graph, int64; `mask_pos` [masks] only with an mlm layer, all others
            [batch, seq].
        output_names: of the graph; with several tasks each begins with `<task>.`.

    Raises:
        PalmError: a head reads what the graph cannot have.
    """

    def __init__(self, backbone: Backbone, heads: Mapping[str, Head], task_id: int) -> None:
        super().__init__()
        self.backbone = backbone
        self.task_id = task_id
        self.tasks = list(heads)
        self.heads = nn.ModuleList(heads.values())
        features = backbone.outputs_attr
        read = [name for head in heads.values() for name in head.inputs_attr if name not in features]
        needed = dict.fromkeys(("token_ids", "input_mask", *backbone.inputs_attr, *read))
        if unknown := [name for name in needed if name not in (*INPUTS, *_MADE, "mask_pos")]:
            raise PalmError(f"the graph has no input {unknown[0]!r}, which the backbone or a head reads")
        self.input_names = [INPUTS.get(name, name) for name in needed if name not in _MADE]
        self.output_names = [name for task in self.tasks for name, _ in self.outputs(task)]

    def forward(self, inputs: Tensors) -> tuple[Tensor, ...]:
        """The outputs in the order of `output_names`.

        Args:
            inputs: every name of `input_names`.
        """
        theirs = {ours: inputs[name] for ours, name in INPUTS.items() if name in inputs}
        ids, mask = theirs["token_ids"], theirs["input_mask"].bool()
        made = {
            "input_mask": mask,
            "position_ids": torch.arange(ids.shape[1], device=ids.device).expand_as(ids) * mask,
            "task_ids": torch.full_like(ids, self.task_id),
            # Decoding asks which pieces begin a word; no output depends on it.
            "word_mask": mask,
        }
        batch = {**inputs, **theirs, **made}  # as a reader would give it
        read = {name for head in self.heads if isinstance(head, Head) for name in head.inputs_attr}
        wanted = [name for name in self.backbone.outputs_attr if name in read]
        features = {**batch, **padded_features(self.backbone, batch, wanted)}
        outputs: list[Tensor] = []
        for task, head in zip(self.tasks, self.heads, strict=True):
            assert isinstance(head, Head)
            given = head({name: features[name] for name in head.inputs_attr})
            outputs += [given[own] for _, own in self.outputs(task)]
        return tuple(outputs)

    def outputs(self, task: str) -> list[tuple[str, str]]:
        """The names of a task's outputs, in the graph and in its head.

        Masks and counters, which only decoding reads, are left out.
        """
        head = self.heads[self.tasks.index(task)]
        assert isinstance(head, Head)
        names = [name for name, spec in head.outputs_attr.items() if spec.dtype.is_floating_point]
        return [(name if len(self.tasks) == 1 else f"{task}.{name}", name) for name in names]
