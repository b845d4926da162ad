"""Multiple choice: which of some choices is right, from the joint embedding of each with the text."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.utils.rnn import pad_sequence

from palm.core.numerics.layers import init_weights
from palm.core.tensor_specs import Tensors, TensorSpec
from palm.paradigm.base import HEADS, Judged
from palm.paradigm.cls import Classify
from palm.paradigm.groups import PER_TEXT, group_inputs, group_scores, real_scores
from palm.paradigm.mrc import PADDING_LOGIT


@HEADS.register("multiple_choice")
class MultipleChoice(Classify):
    """Dropout and one linear layer that scores each choice, and a softmax over the choices of an example.

    Args:
        hidden_size: width of the backbone's sentence embedding.
        dropout_prob: probability of zeroing a feature while training.
        initializer_range: sigma of the normal that the weights start from.
        calibrate: fit a temperature to the dev data, by which logits are divided for their probabilities.
        abstain_below: the precision that is wanted: a prediction abstains where its probability is below the
            lowest one from which on so many are right on the dev data; without dev data, below this value.

    Raises:
        ConfigError: with every setting that is wrong.

    Source: Radford et al., 2018, "Improving language understanding by generative pre-training", figure 1.
    """

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
        # How many choices there are is a matter of the row; 2 is the least.
        super().__init__(
            2, hidden_size, dropout_prob, initializer_range, calibrate=calibrate, abstain_below=abstain_below
        )
        self.inputs_attr = group_inputs(self.feature, hidden_size)
        self.targets_attr = {"label_ids": TensorSpec(("examples",), torch.long)}
        self.outputs_attr = {"logits": PER_TEXT, "probs": PER_TEXT}
        self.out = nn.Linear(hidden_size, 1)
        init_weights(self.out, initializer_range)

    def forward(self, features: Tensors) -> Tensors:
        """`logits` and `probs`, both [examples, choices]; behind the last choice `PADDING_LOGIT` and 0."""
        logits = group_scores(self.out, self.dropout(features[self.feature]), features["group_rows"])
        return {"logits": logits, "probs": self.probabilities(logits)}

    def decode(self, outputs: Tensors) -> list[dict[str, Any]]:
        """As `Classify`, with `logits` and `probs` of the example's own choices."""
        records = super().decode(outputs)
        for record, logits in zip(records, real_scores(outputs["logits"]), strict=True):
            record["logits"] = logits
            record["probs"] = record["probs"][: len(logits)]
        return records

    def logits_of(self, pairs: Sequence[Judged]) -> Tensor:
        logits = [torch.tensor(record["logits"]) for record, _ in pairs]
        return pad_sequence(logits, batch_first=True, padding_value=PADDING_LOGIT)
