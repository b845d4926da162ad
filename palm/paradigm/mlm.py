"""Masked language modelling: predict the words that the reader masked."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import KW_ONLY, dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from palm.core.component import PositiveFloat, PositiveInt
from palm.core.layers import ACTIVATIONS, ActivationName, init_weights
from palm.core.saved import Tensors, TensorSpec
from palm.paradigm.base import HEADS, TokenHead, values_by_row


@HEADS.register("mlm")
@dataclass(eq=False, repr=False)
class MaskLM(TokenHead):
    """Transform and softmax over the backbone's word embeddings (Devlin et al., 2018, section 3.1).

    Logits are computed only at the masked positions, which the reader lists row by row.

    Args:
        hidden_size: width of the backbone's encoder outputs.
        vocab_size: size of the vocabulary.
        hidden_act: activation of the transform.
        initializer_range: standard deviation of the normal distribution that initializes the weights.
        layer_norm_eps: added to the variance in the layer norm.
        embedding_size: width of the backbone's word embeddings if it differs from `hidden_size` (ELECTRA).

    Raises:
        ConfigError: if settings are invalid; lists all of them.
    """

    card = ("fill-mask", "masked words")
    library_model = "ForMaskedLM"
    computes_in_bf16 = True

    metrics = ("perplexity", "word_accuracy")

    hidden_size: PositiveInt
    vocab_size: PositiveInt
    hidden_act: ActivationName = "gelu"
    _: KW_ONLY
    initializer_range: PositiveFloat = 0.02
    layer_norm_eps: PositiveFloat = 1e-12
    embedding_size: PositiveInt | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        super().__init__()
        width = self.hidden_size if self.embedding_size is None else self.embedding_size
        self.inputs_attr = {
            "encoder_outputs": TensorSpec(("batch", "seq", self.hidden_size), torch.float),
            "embedding_table": TensorSpec((self.vocab_size, width), torch.float),
            "mask_pos": TensorSpec(("masks",), torch.long),
            "input_mask": TensorSpec(("batch", "seq"), torch.bool),
        }
        self.targets_attr = {"mask_label": TensorSpec(("masks",), torch.long)}
        self.outputs_attr = {
            "logits": TensorSpec(("masks", self.vocab_size), torch.float),
            "mask_pos": TensorSpec(("masks",), torch.long),
            "input_mask": TensorSpec(("batch", "seq"), torch.bool),
        }
        self.transform = nn.Linear(self.hidden_size, width)
        self.activation = ACTIVATIONS[self.hidden_act]
        self.norm = nn.LayerNorm(width, eps=self.layer_norm_eps)
        self.bias: nn.Parameter | None = nn.Parameter(torch.zeros(self.vocab_size))
        init_weights(self, self.initializer_range)

    def adapt(self, layers_of: Callable[[str], Any]) -> None:
        """Replace the transform by the family's own; remove the bias if the family has none."""
        if self.above is None and (layers := layers_of(self.library_model)) is not None:
            self.above = layers
            self.bias = self.bias if "bias" in layers.names else None
            del self.transform
            del self.norm

    def forward(self, features: Tensors) -> Tensors:
        """`logits` [masks, vocab_size], and the inputs `mask_pos` [masks] and `input_mask` [batch, seq].

        `mask_pos` are flat positions, `row * seq + column`, row by row.
        """
        tokens = features["encoder_outputs"]
        masked = tokens.flatten(0, 1).index_select(0, features["mask_pos"])  # [masks, width]
        table = features["embedding_table"]
        if self.above is None:
            transformed = self.norm(self.activation(self.transform(masked)))
        else:
            transformed = self.above(masked[:, None])[:, 0]
            table = table if self.above.table is None else self.above.table
        logits = F.linear(transformed, table, self.bias).float()
        return {"logits": logits, "mask_pos": features["mask_pos"], "input_mask": features["input_mask"]}

    def loss(self, outputs: Tensors, targets: Tensors) -> Tensor:
        """Mean cross-entropy over the masks."""
        return F.cross_entropy(outputs["logits"], targets["mask_label"])

    def decode(self, outputs: Tensors) -> list[dict[str, Any]]:
        """Per row `positions` of its masks, `predicted` most likely word ids and their `probs`."""
        probs, words = outputs["logits"].float().softmax(-1).max(-1)
        positions = outputs["mask_pos"] % outputs["input_mask"].shape[1]
        fields = {"positions": positions, "predicted": words, "probs": probs}
        return values_by_row(fields, _counts(outputs))

    def eval_outputs(self, outputs: Tensors, batch: Tensors) -> list[dict[str, Any]]:
        """Per row `log_probs` of the masked words."""
        log_probs = outputs["logits"].float().log_softmax(-1)
        true = log_probs.gather(1, batch["mask_label"][:, None])[:, 0]  # [masks]
        return values_by_row({"log_probs": true}, _counts(outputs))


def _counts(outputs: Tensors) -> Tensor:
    """Count the masks of each row, [batch]."""
    batch, seq = outputs["input_mask"].shape
    return torch.bincount(outputs["mask_pos"] // seq, minlength=batch)
