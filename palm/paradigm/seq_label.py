"""Sequence labelling: one label per word, predicted independently or jointly with a CRF."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from palm.core.component import PositiveFloat, positive_problems, raise_any
from palm.core.errors import ConfigError
from palm.core.saved import NO_LABEL, Tensors, TensorSpec
from palm.paradigm.base import HEADS, TokenHead, values_by_row
from palm.paradigm.class_head import WeightedHead, label_error
from palm.paradigm.crf import LinearChainCRF


@HEADS.register("seq_label")
@dataclass(eq=False, repr=False, kw_only=True)
class SequenceLabel(WeightedHead, TokenHead):
    """Dropout and one linear layer on every word's first subword (Devlin et al., 2018, section 4.3).

    Args:
        use_crf: predict the labels of a text jointly, with a linear-chain CRF over its words.
        crf_learning_rate_factor: for seq_label with use_crf, factor of the CRF's learning rate.
        emission_l2: for seq_label, fraction of the linear layer's weights that is added to their gradient.

    Raises:
        ConfigError: if settings are invalid; lists all of them.

    Source: PaddlePALM 2.0.2, `SequenceLabel`, with the CRF and without dropout.
    """

    card = ("token-classification", "a label for every word")
    library_model = "ForTokenClassification"
    feature = "encoder_outputs"
    metrics = ("entity_f1", "token_accuracy")

    use_crf: bool = False
    crf_learning_rate_factor: PositiveFloat = 1.0
    emission_l2: float = 0.0

    def __post_init__(self) -> None:
        super().__post_init__()
        raise_any(positive_problems(emission_l2=self.emission_l2 or 1))
        if self.use_crf and not self.class_loss.is_plain:
            raise ConfigError("use_crf does not support class_weights and label_smoothing; leave them out")
        word_mask = TensorSpec(("batch", "seq"), torch.bool)
        self.inputs_attr = {
            self.feature: TensorSpec(("batch", "seq", self.hidden_size), torch.float),
            "word_mask": word_mask,
        }
        self.targets_attr = {"label_ids": TensorSpec(("batch", "seq"), torch.long)}
        self.outputs_attr = {
            "logits": TensorSpec(("batch", "seq", self.n_classes), torch.float),
            "word_mask": word_mask,
        }
        self.crf = LinearChainCRF(self.n_classes) if self.use_crf else None
        if self.use_crf and self.crf_learning_rate_factor != 1:
            self.rate_factors = {"crf.weight": self.crf_learning_rate_factor}
        if self.emission_l2:
            self.l2_decays = {"out.weight": self.emission_l2}

    def forward(self, features: Tensors) -> Tensors:
        """`logits` [batch, seq, n_classes] and the input `word_mask` [batch, seq], True on words."""
        logits = self.out(self.dropout(self.tokens_of(features)))
        return {"logits": logits, "word_mask": features["word_mask"]}

    def loss(self, outputs: Tensors, targets: Tensors) -> Tensor:
        """Mean cross-entropy over words; with the CRF, mean negative log-likelihood over rows.

        Words and rows without a label are ignored.

        Raises:
            WiringError: if a label is out of range (on a CPU only; a GPU does not report which one).
        """
        mask = outputs["word_mask"]
        labels = targets["label_ids"].masked_fill(~mask, NO_LABEL)
        if self.crf is None:
            # All tokens, masked by label: selecting the words would synchronize a GPU.
            return super().loss({"logits": outputs["logits"].flatten(0, 1)}, {"label_ids": labels.flatten()})
        # Not on a GPU, which would have to be synchronized.
        if mask.device.type == "cpu" and int(labels.max()) >= self.n_classes:
            raise label_error("label_ids", labels, self.n_classes)
        # A row without labels is computed with label 0 and left out of the mean.
        known = (labels != NO_LABEL).any(1)
        emissions, words = words_first(outputs["logits"], mask)
        labels = words_first(labels.clamp(min=0), mask)[0]
        # Multiplied by `known`: selecting the rows would synchronize a GPU.
        losses = self.crf.negative_log_likelihood(emissions, labels, words) * known
        return losses.sum() / known.sum().clamp(min=1)

    def num_terms(self, batch: Tensors) -> int:
        """Count the words, or with the CRF the rows, that have labels; all of them without targets."""
        counted = batch["word_mask"]
        if "label_ids" in batch:
            counted = counted & (batch["label_ids"] != NO_LABEL)
        return int(counted.any(1).sum() if self.crf is not None else counted.sum())

    def decode(self, outputs: Tensors) -> list[dict[str, Any]]:
        """Per row `labels`, one per word: the most likely ones or, with the CRF, the most likely sequence."""
        mask = outputs["word_mask"]
        logits = outputs["logits"][mask]
        if self.crf is None:
            labels = logits.argmax(-1)
        else:
            emissions, words = words_first(outputs["logits"], mask)
            labels = self.crf.best_labels(emissions, words)[words]
        return values_by_row({"labels": labels}, mask.sum(1))


def words_first(values: Tensor, mask: Tensor) -> tuple[Tensor, Tensor]:
    """Move the values of words to the front of every row.

    Args:
        values: [batch, seq, ...].
        mask: bool [batch, seq], True on words.

    Returns:
        The words' values in order, padded with zeros, [batch, words, ...], and their mask, bool
        [batch, words]; `words` is the maximum number of words in a row (on a GPU, `seq`).
    """
    counts = mask.sum(1, keepdim=True)
    # To avoid a GPU sync, rows keep their width there, and nothing is selected by a mask.
    width = mask.shape[1] if mask.is_cuda else int(counts.max())
    words = torch.arange(width, device=mask.device) < counts
    order = (~mask).byte().argsort(dim=1, stable=True)[:, :width]
    extra = (1,) * (values.ndim - 2)
    places, kept = (part.view(*words.shape, *extra) for part in (order, words))
    front = values.gather(1, places.expand(*words.shape, *values.shape[2:]))
    return front.masked_fill(~kept, 0), words
