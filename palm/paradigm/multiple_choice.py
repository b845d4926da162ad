"""Multiple choice on the joint embedding of the text with each choice."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

import torch
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence

from palm.core.tensor_specs import Tensors, TensorSpec
from palm.paradigm.base import HEADS, Judged
from palm.paradigm.class_head import PLAIN_LOSS, ClassHead
from palm.paradigm.groups import GROUPS, PER_TEXT, group_scores, unpadded
from palm.paradigm.mrc import PADDING_LOGIT


@HEADS.register("multiple_choice")
class MultipleChoice(ClassHead):
    """Dropout and one linear layer that scores each choice; softmax over the choices of an example.

    Source: Radford et al., 2018, "Improving language understanding by generative pre-training", figure 1.
    """

    metrics = ("accuracy",)
    # The number of choices varies by row; 2 is the minimum.
    fixed: ClassVar[Mapping[str, Any]] = {"n_classes": 2, **PLAIN_LOSS}
    num_scores = 1

    def setup(self) -> None:
        """Declare tensors per example."""
        self.inputs_attr = {**self.inputs_attr, **GROUPS}
        self.targets_attr = {"label_ids": TensorSpec(("examples",), torch.long)}
        self.outputs_attr = {"logits": PER_TEXT, "probs": PER_TEXT}

    def forward(self, features: Tensors) -> Tensors:
        """`logits` and `probs`, both [examples, choices]; padding has `PADDING_LOGIT` and 0."""
        logits = group_scores(self.out, self.dropout(features[self.feature]), features["group_rows"])
        return {"logits": logits, "probs": self.probabilities(logits)}

    def decode(self, outputs: Tensors) -> list[dict[str, Any]]:
        """Per example the values of `ClassHead.decode`, with `logits` and `probs` without padding."""
        records = super().decode(outputs)
        for record, logits in zip(records, unpadded(outputs["logits"]), strict=True):
            record["logits"] = logits
            record["probs"] = record["probs"][: len(logits)]
        return records

    def logits_of(self, pairs: Sequence[Judged]) -> Tensor:
        logits = [torch.tensor(record["logits"]) for record, _ in pairs]
        return pad_sequence(logits, batch_first=True, padding_value=PADDING_LOGIT)
