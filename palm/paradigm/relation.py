"""Relation extraction: every pair of spans is scored for each label, by their first and last words."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

import torch
from torch import Tensor
from torch.nn import functional as F

from palm.core.errors import ConfigError, about
from palm.core.saved import NO_LABEL, Tensors, TensorSpec
from palm.paradigm.base import HEADS
from palm.paradigm.span import Biaffine, PairHead, Span


@HEADS.register("relation")
@dataclass(eq=False, repr=False, kw_only=True)
class Relation(PairHead):
    """A biaffine score of the first words of two spans, and one of their last words, for each label.

    Their sum is the logit of a relation from one span to the other; a pair of spans may have any number of
    relations. With `spans: predicted`, a span scorer (the head `span`) is trained jointly, and relations are
    predicted between the spans that it finds.

    Args:
        n_span_classes: with spans: predicted, number of labels of spans.
        spans: source of the spans in prediction and evaluation: predicted, or given, the spans of the file.

    Raises:
        ConfigError: if settings are invalid; lists all of them.

    Source: Wang et al., 2020, "TPLinker: Single-stage Joint Extraction of Entities and Relations Through
    Token Pair Linking", whose links of heads and of tails are two parts of one score here.
    """

    card = ("token-classification", "relations between spans of a text")

    n_span_classes: int | None = None
    spans: Literal["given", "predicted"] = "predicted"

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.spans == "predicted" and self.n_span_classes is None:
            raise ConfigError(
                about("n_span_classes", " is missing; 'spans: predicted' needs the number of span labels")
            )
        self.metrics = ("relation_strict_f1", "relation_boundary_f1")
        one_per_span = TensorSpec(("batch", "spans"), torch.long)
        places = {"span_starts": one_per_span, "span_ends": one_per_span}
        tables = TensorSpec(("batch", "words", "words", self.n_classes), torch.float)
        pairs = TensorSpec(("batch", "spans", "spans", self.n_classes), torch.long)
        self.targets_attr = {"relation_labels": pairs}
        self.outputs_attr = {"first_logits": tables, "last_logits": tables}
        self.span_head: Span | None = None
        if self.n_span_classes is not None and self.spans == "predicted":
            self.span_head = Span(self.n_span_classes, **self.sizes)
            self.metrics = (*self.metrics, "span_f1")
            self.targets_attr |= {**places, **self.span_head.targets_attr}
            self.outputs_attr |= self.span_head.outputs_attr
        else:
            self.inputs_attr = {**self.inputs_attr, **places}
            self.outputs_attr |= places
        self.first = Biaffine(self.n_classes, **self.sizes)
        self.last = Biaffine(self.n_classes, **self.sizes)

    def forward(self, features: Tensors) -> Tensors:
        """`first_logits` and `last_logits` [batch, words, words, n_classes], and spans or their scores."""
        words = self.words_of(features)
        tables = {"first_logits": self.first(words), "last_logits": self.last(words)}
        if self.span_head is not None:
            return {**tables, **self.span_head(features)}
        return tables | {name: features[name] for name in ("span_starts", "span_ends")}

    def loss(self, outputs: Tensors, targets: Tensors) -> Tensor:
        """Mean binary cross-entropy over all labels of all pairs of the true spans.

        With predicted spans, the mean also includes the terms of the span head's loss.
        """
        labels = targets["relation_labels"]
        places = outputs if self.span_head is None else targets
        logits = pair_logits(outputs, places["span_starts"], places["span_ends"])
        known = labels != NO_LABEL
        losses = F.binary_cross_entropy_with_logits(logits, labels.clamp(min=0).float(), reduction="none")
        total = (losses * known).sum()
        count = known.sum()
        if self.span_head is not None:
            span_total, span_count = self.span_head.summed_loss(outputs, targets)
            total = total + span_total
            count = count + span_count
        return total / count.clamp(min=1)

    def num_terms(self, batch: Tensors) -> int:
        """Count the known labels of pairs and, with predicted spans, the terms of the span loss."""
        if "relation_labels" not in batch:
            return super().num_terms(batch)
        span_count = 0 if self.span_head is None else self.span_head.num_terms(batch)
        return span_count + int((batch["relation_labels"] != NO_LABEL).sum())

    def decode(self, outputs: Tensors) -> list[dict[str, Any]]:
        """Per row `spans`, as decoded by the span head, and `relations`: (head, tail, label, probability).

        Head and tail are indices of spans; probabilities are at least 0.5. Given spans are not returned.
        """
        if self.span_head is not None:
            decoded = self.span_head.decode(outputs)
            places = [[span[:2] for span in row["spans"]] for row in decoded]
        else:
            decoded = [{"spans": []} for _ in outputs["span_ends"]]
            both = torch.stack([outputs["span_starts"], outputs["span_ends"]], dim=-1)
            places = [row[row[:, 1] > 0].tolist() for row in both]
        for number, (row, spans) in enumerate(zip(decoded, places, strict=True)):
            own = {name: outputs[name][number : number + 1] for name in ("first_logits", "last_logits")}
            starts, ends = torch.tensor(spans, dtype=torch.long).reshape(1, -1, 2).unbind(-1)
            probs = pair_logits(own, starts, ends)[0].detach().sigmoid()
            # No span is related to itself.
            probs.diagonal().zero_()
            found = probs >= 0.5
            scored = zip(found.nonzero().tolist(), probs[found].tolist(), strict=True)
            row["relations"] = [(*pair, prob) for pair, prob in scored]
        return decoded


def pair_logits(outputs: Tensors, starts: Tensor, ends: Tensor) -> Tensor:
    """Compute the logits of relations between all pairs of spans, [batch, spans, spans, n_classes].

    Args:
        outputs: `first_logits` and `last_logits` of the head.
        starts: the first word of each span, [batch, spans].
        ends: the first word after each span, [batch, spans]; 0 for padding, whose logits are undefined.
    """
    rows = torch.arange(len(starts), device=starts.device)[:, None, None]
    last = (ends - 1).clamp(min=0)
    first_logits = outputs["first_logits"][rows, starts[:, :, None], starts[:, None]]
    return first_logits + outputs["last_logits"][rows, last[:, :, None], last[:, None]]
