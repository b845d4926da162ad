"""Sequence labelling: one label per word, each by itself or as one likely sequence."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from palm.core.checks import positive_problems, raise_any
from palm.core.component import Translate
from palm.core.errors import ConfigError
from palm.core.tensor_specs import NO_LABEL, Tensors, TensorSpec
from palm.paradigm.base import HEADS, Head, Judged, TokenHead, values_by_row
from palm.paradigm.class_head import ClassHead
from palm.paradigm.class_loss import label_error
from palm.paradigm.crf import LinearChainCRF


def _rate_of_crf(value: float) -> dict[str, Any]:
    """The argument `learning_rate` of 2.x, which is a factor there too."""
    return {"crf_learning_rate_factor": value}


@HEADS.register("seq_label")
class SequenceLabel(ClassHead, TokenHead):
    """Dropout and one linear layer on every word's first piece (Devlin et al., 2018, section 4.3).

    Args:
        use_crf: score a text's labels together, with a linear-chain CRF over its words.
        crf_learning_rate_factor: of seq_label with use_crf, factor of the rate of the CRF's weights.
        emission_l2: of seq_label, what part of the linear layer's weights is added to their gradient.
        calibrate: fit a temperature to the words of the dev data, by which logits are divided for the
            probability of each word's label.

    Raises:
        ConfigError: with every setting that is wrong.

    Source: PaddlePALM 2.0.2, `SequenceLabel`, with the CRF and without dropout.
    """

    library_model = "ForTokenClassification"
    calibration_error = "word_ece"
    feature = "encoder_outputs"
    metrics = ("entity_f1", "token_accuracy")
    fixed: ClassVar[Mapping[str, Any]] = {"r_drop": 0.0, "abstain_below": None}
    only_2x: ClassVar[Mapping[str, Translate]] = {**Head.only_2x, "learning_rate": _rate_of_crf}
    order_2x = ("n_classes", "hidden_size", "dropout_prob", "learning_rate", "initializer_range", "phase")

    def take(
        self, *, use_crf: bool = False, crf_learning_rate_factor: float = 1.0, emission_l2: float = 0.0
    ) -> None:
        """Take the settings of its own."""
        problems = positive_problems(crf_learning_rate_factor=crf_learning_rate_factor)
        raise_any(problems + positive_problems(emission_l2=emission_l2 or 1))
        if use_crf and (self.is_calibrated or not self.class_loss.is_plain):
            raise ConfigError(
                "use_crf: class_weights, label_smoothing, focal_gamma and calibrate are of single labels"
            )
        word_mask = TensorSpec(("batch", "seq"), torch.bool)
        width = self.inputs_attr[self.feature].shape[-1]
        self.inputs_attr = {
            self.feature: TensorSpec(("batch", "seq", width), torch.float),
            "word_mask": word_mask,
        }
        self.targets_attr = {"label_ids": TensorSpec(("batch", "seq"), torch.long)}
        self.outputs_attr = {
            "logits": TensorSpec(("batch", "seq", self.n_classes), torch.float),
            "word_mask": word_mask,
        }
        self.crf = LinearChainCRF(self.n_classes) if use_crf else None
        if use_crf and crf_learning_rate_factor != 1:
            self.rate_factors = {"crf.weight": crf_learning_rate_factor}
        if emission_l2:
            self.l2_decays = {"out.weight": emission_l2}

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
        labels = targets["label_ids"].masked_fill(~mask, NO_LABEL)
        if self.crf is None:
            # By rows of all tokens: a GPU would be waited for to count the words.
            return super().loss({"logits": outputs["logits"].flatten(0, 1)}, {"label_ids": labels.flatten()})
        # A GPU cannot say which label is wrong, and would be waited for.
        if mask.device.type == "cpu" and int(labels.max()) >= self.n_classes:
            raise label_error("label_ids", labels, self.n_classes)
        # A row without labels is computed with label 0, and left out of the mean.
        known = (labels != NO_LABEL).any(1)
        emissions, words = words_first(outputs["logits"], mask)
        labels = words_first(labels.clamp(min=0), mask)[0]
        # Not selected by `known`, for which a GPU would be waited for.
        return (self.crf.negative_log_likelihood(emissions, labels, words) * known).sum() / known.sum().clamp(
            min=1
        )

    def num_terms(self, batch: Tensors) -> int:
        """The words, or with the CRF the rows, that have labels; all of them where nothing has any."""
        counted = batch["word_mask"]
        if "label_ids" in batch:
            counted = counted & (batch["label_ids"] != NO_LABEL)
        return int(counted.any(1).sum() if self.crf is not None else counted.sum())

    def decode(self, outputs: Tensors) -> list[dict[str, Any]]:
        """Per row `labels`, one for every word in order: the likeliest each, or with the CRF together."""
        mask = outputs["word_mask"]
        logits = outputs["logits"][mask]
        if self.crf is None:
            labels = logits.argmax(-1)
        else:
            emissions, words = words_first(outputs["logits"], mask)
            labels = self.crf.best_labels(emissions, words)[words]
        fields = {"labels": labels}
        if self.is_calibrated:
            fields["probs"] = self.probabilities(logits).amax(-1)
        return values_by_row(fields, mask.sum(1))

    def eval_outputs(self, outputs: Tensors, batch: Tensors) -> list[dict[str, Any]]:  # noqa: ARG002
        """Per row the `logits` of every word, where they are to be calibrated."""
        mask = outputs["word_mask"]
        words = {"logits": outputs["logits"][mask]}
        return values_by_row(words, mask.sum(1)) if self.is_calibrated else []

    def logits_of(self, pairs: Sequence[Judged]) -> Tensor:
        return torch.tensor([logits for record, _ in pairs for logits in record["logits"]])

    def labels_of(self, pairs: Sequence[Judged]) -> npt.NDArray[np.int64]:
        return np.asarray([label for _, truth in pairs for label in truth["label_ids"]])

    def decoded_again(self, pairs: Sequence[Judged]) -> list[Judged]:
        probs = iter(self.probabilities(self.logits_of(pairs)).amax(-1).tolist())
        return [
            ({**record, "probs": [next(probs) for _ in record["labels"]]}, truth) for record, truth in pairs
        ]


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
