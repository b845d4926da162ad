"""Multiple choice: which of some choices is right, from the joint embedding of each with the text."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

import torch
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence

from palm.core.tensor_specs import Tensors, TensorSpec
from palm.paradigm.base import HEADS, Judged
from palm.paradigm.class_head import PLAIN_LOSS, ClassHead
from palm.paradigm.groups import GROUPS, PER_TEXT, group_scores, real_scores
from palm.paradigm.mrc import PADDING_LOGIT


@HEADS.register("multiple_choice")
class MultipleChoice(ClassHead):
    """Dropout and one linear layer that scores each choice, and a softmax over the choices of an example.

    Source: Radford et al., 2018, "Improving language understanding by generative pre-training", figure 1.
    """

    metrics = ("accuracy",)
    # How many choices there are is a matter of the row; 2 is the least.
    fixed: ClassVar[Mapping[str, Any]] = {"n_classes": 2, **PLAIN_LOSS}
    num_scores = 1

    def take(self) -> None:
        """Declare tensors by example."""
        self.inputs_attr = {**self.inputs_attr, **GROUPS}
        self.targets_attr = {"label_ids": TensorSpec(("examples",), torch.long)}
        self.outputs_attr = {"logits": PER_TEXT, "probs": PER_TEXT}

    def forward(self, features: Tensors) -> Tensors:
        """`logits` and `probs`, both [examples, choices]; behind the last choice `PADDING_LOGIT` and 0."""
        logits = group_scores(self.out, self.dropout(features[self.feature]), features["group_rows"])
        return {"logits": logits, "probs": self.probabilities(logits)}

    def decode(self, outputs: Tensors) -> list[dict[str, Any]]:
        """As `ClassHead`, with `logits` and `probs` of the example's own choices."""
        records = super().decode(outputs)
        for record, logits in zip(records, real_scores(outputs["logits"]), strict=True):
            record["logits"] = logits
            record["probs"] = record["probs"][: len(logits)]
        return records

    def logits_of(self, pairs: Sequence[Judged]) -> Tensor:
        logits = [torch.tensor(record["logits"]) for record, _ in pairs]
        return pad_sequence(logits, batch_first=True, padding_value=PADDING_LOGIT)
