"""Sequence labelling: one label per word, each by itself or as one likely sequence."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, ClassVar

import numpy.typing as npt
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from palm.core.checks import count_problems, positive_problems, raise_any
from palm.core.component import Translate
from palm.core.errors import ConfigError, WiringError
from palm.core.numerics.layers import init_weights
from palm.core.tensor_specs import NO_LABEL, Tensors, TensorSpec
from palm.paradigm.base import ALIASES_2X, HEADS, Head, TokenHead, head_problems
from palm.paradigm.class_loss import ClassLoss
from palm.paradigm.crf import LinearChainCRF


def _rate_of_crf(value: float) -> dict[str, Any]:
    """The argument `learning_rate` of 2.x, which is a factor there too."""
    return {"crf_learning_rate_factor": value}


@HEADS.register("seq_label")
class SequenceLabel(TokenHead):
    """Dropout and one linear layer on every word's first piece (Devlin et al., 2018, section 4.3).

    Args:
        n_classes: number of labels; label ids run from 0 to `n_classes - 1`.
        hidden_size: width of the backbone's encoder outputs.
        dropout_prob: probability of zeroing a feature while training.
        initializer_range: sigma of the normal that the linear layer's weights start from.
        use_crf: score a text's labels together, with a linear-chain CRF over its words.
        crf_learning_rate_factor: of seq_label with use_crf, factor of the rate of the CRF's weights.
        class_weights: factor of the loss of each label; or balanced: rows / (labels * rows of the label).
        label_smoothing: the part of the true label's probability that is divided among all labels.
        focal_gamma: exponent of (1 - probability of the true label), by which the loss is multiplied.
        emission_l2: of seq_label, what part of the linear layer's weights is added to their gradient.

    Raises:
        ConfigError: with every setting that is wrong.

    Source: PaddlePALM 2.0.2, `SequenceLabel`, with the CRF and without dropout.
    """

    aliases: ClassVar[dict[str, str]] = {"num_classes": "n_classes"} | ALIASES_2X

    library_model = "ForTokenClassification"
    metrics = ("entity_f1", "token_accuracy")
    only_2x: ClassVar[Mapping[str, Translate]] = {**Head.only_2x, "learning_rate": _rate_of_crf}
    order_2x = ("n_classes", "hidden_size", "dropout_prob", "learning_rate", "initializer_range", "phase")

    def __init__(
        self,
        n_classes: int,
        hidden_size: int,
        dropout_prob: float = 0.1,
        initializer_range: float = 0.02,
        *,
        use_crf: bool = False,
        crf_learning_rate_factor: float = 1.0,
        emission_l2: float = 0.0,
        class_weights: str | list[float] | None = None,
        label_smoothing: float = 0.0,
        focal_gamma: float = 0.0,
    ) -> None:
        super().__init__()
        raise_any(
            [
                *count_problems(least=2, n_classes=n_classes),
                *head_problems(hidden_size, initializer_range, dropout_prob),
                *positive_problems(crf_learning_rate_factor=crf_learning_rate_factor),
                *positive_problems(emission_l2=emission_l2 or 1),
            ]
        )
        word_mask = TensorSpec(("batch", "seq"), torch.bool)
        self.inputs_attr = {
            "encoder_outputs": TensorSpec(("batch", "seq", hidden_size), torch.float),
            "word_mask": word_mask,
        }
        self.targets_attr = {"label_ids": TensorSpec(("batch", "seq"), torch.long)}
        self.outputs_attr = {
            "logits": TensorSpec(("batch", "seq", n_classes), torch.float),
            "word_mask": word_mask,
        }
        self.dropout = nn.Dropout(dropout_prob)
        self.out = nn.Linear(hidden_size, n_classes)
        self.class_loss = ClassLoss(n_classes, class_weights, label_smoothing, focal_gamma)
        if use_crf and not self.class_loss.is_plain:
            raise ConfigError("use_crf: class_weights, label_smoothing and focal_gamma are of single labels")
        self.crf = LinearChainCRF(n_classes) if use_crf else None
        if use_crf and crf_learning_rate_factor != 1:
            self.rate_factors = {"crf.weight": crf_learning_rate_factor}
        if emission_l2:
            self.l2_decays = {"out.weight": emission_l2}
        init_weights(self, initializer_range)

    def forward(self, features: Tensors) -> Tensors:
        """`logits` [batch, seq, n_classes] and, as it came, `word_mask` [batch, seq]: which of them count."""
        logits = self.out(self.dropout(self.tokens_of(features)))
        return {"logits": logits, "word_mask": features["word_mask"]}

    def loss(self, outputs: Tensors, targets: Tensors) -> Tensor:
        """Mean cross-entropy of the words; with the CRF, mean negative log-likelihood of the rows.

        What has no label does not count.

        Raises:
            WiringError: if a label is none of the classes (on a CPU; a GPU cannot say which).
        """
        mask = outputs["word_mask"]
        labels = targets["label_ids"]
        count = outputs["logits"].shape[-1]
        # A GPU would have to be waited for.
        if mask.device.type == "cpu" and int(labels[mask].max()) >= count:
            strange = sorted({label for label in labels[mask].tolist() if label >= count})
            raise WiringError(f"label_ids: {strange} are outside 0..{count - 1}; n_classes is {count}")
        if self.crf is None:
            # Equal gradients, bit by bit; but a GPU would be waited for to count the words, and on a CPU the
            # sum of the others has the last digits that it always had.
            if mask.is_cuda or not self.class_loss.is_plain:
                return cross_entropy_of_words(outputs["logits"], labels, mask, self.class_loss)
            return F.cross_entropy(outputs["logits"][mask], labels[mask])
        # A row without labels is computed with label 0, and left out of the mean.
        known = (labels != NO_LABEL).any(1)
        emissions, words = words_first(outputs["logits"], mask)
        labels = words_first(labels.clamp(min=0), mask)[0]
        # Not selected by `known`, for which a GPU would be waited for.
        return (self.crf.negative_log_likelihood(emissions, labels, words) * known).sum() / known.sum()

    def count_labels(self, labels: npt.NDArray[Any]) -> None:
        self.class_loss.count(labels)

    def num_terms(self, batch: Tensors) -> int:
        """The words, or with the CRF the rows, that have labels; all of them where nothing has any."""
        counted = batch["word_mask"]
        if "label_ids" in batch:
            counted = counted & (batch["label_ids"] != NO_LABEL)
        return int(counted.any(1).sum() if self.crf is not None else counted.sum())

    def decode(self, outputs: Tensors) -> list[dict[str, Any]]:
        """Per row `labels`, one for every word in order: the likeliest each, or with the CRF together."""
        mask = outputs["word_mask"]
        if self.crf is None:
            labels = outputs["logits"][mask].argmax(-1)
        else:
            emissions, words = words_first(outputs["logits"], mask)
            labels = self.crf.best_labels(emissions, words)[words]
        return [{"labels": row.tolist()} for row in torch.split(labels, mask.sum(1).tolist())]


def cross_entropy_of_words(
    logits: Tensor, labels: Tensor, mask: Tensor, loss: Callable[[Tensor, Tensor], Tensor] = F.cross_entropy
) -> Tensor:
    """The mean over the words, without counting or selecting them.

    Args:
        logits: [batch, seq, n_classes].
        labels: int64 [batch, seq].
        mask: bool [batch, seq], True on words.
        loss: of rows [words, n_classes] and their labels, which leaves out those of NO_LABEL.
    """
    return loss(logits.flatten(0, 1), labels.masked_fill(~mask, NO_LABEL).flatten())


def words_first(values: Tensor, mask: Tensor) -> tuple[Tensor, Tensor]:
    """Move the marked values to the front of every row.

    Args:
        values: [batch, seq, ...].
        mask: bool [batch, seq].

    Returns:
        The marked values in order, then zeros, [batch, words, ...], and a mask of the former, bool
        [batch, words]; `words` is the largest number of marks in a row.
    """
    counts = mask.sum(1, keepdim=True)
    # Not to wait for a GPU, its rows keep their width, and nothing is picked by a mask.
    width = mask.shape[1] if mask.is_cuda else int(counts.max())
    words = torch.arange(width, device=mask.device) < counts
    order = (~mask).byte().argsort(dim=1, stable=True)[:, :width]
    extra = (1,) * (values.ndim - 2)
    places, kept = (part.view(*words.shape, *extra) for part in (order, words))
    front = values.gather(1, places.expand(*words.shape, *values.shape[2:]))
    return front.masked_fill(~kept, 0), words
