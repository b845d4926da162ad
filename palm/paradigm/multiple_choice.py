"""Multiple choice on the joint embedding of the text with each choice."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence

from palm.core.tensor_specs import Tensors, TensorSpec
from palm.paradigm.base import HEADS, Judged
from palm.paradigm.class_head import ClassHead
from palm.paradigm.groups import GROUPS, PER_TEXT, group_scores, unpadded
from palm.paradigm.mrc import PADDING_LOGIT


@HEADS.register("multiple_choice")
class MultipleChoice(ClassHead):
    """Dropout and one linear layer that scores each choice; softmax over the choices of an example.

    Source: Radford et al., 2018, "Improving language understanding by generative pre-training", figure 1.
    """

    card = ("multiple-choice", "multiple choice")
    example = '[("a text", ["a choice", "another one"])]'
    metrics = ("accuracy",)

    def __init__(
        self,
        hidden_size: int,
        dropout_prob: float = 0.1,
        initializer_range: float = 0.02,
        *,
        calibrate: bool = False,
        abstain_below: float | None = None,
    ) -> None:
        # The number of choices varies by row; 2 is the minimum.
        super().__init__(
            2,
            hidden_size,
            dropout_prob,
            initializer_range,
            calibrate=calibrate,
            abstain_below=abstain_below,
            num_scores=1,
        )
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
