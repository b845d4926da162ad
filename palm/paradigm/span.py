"""Labelled spans, possibly nested: every pair of a first and a last word is scored for each label."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import KW_ONLY, dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from palm.core.component import PositiveFloat, PositiveInt, Probability
from palm.core.layers import init_weights
from palm.core.saved import NO_LABEL, Tensors, TensorSpec
from palm.paradigm.base import HEADS, Head
from palm.paradigm.class_head import label_error

ScoredSpan = tuple[int, int, int, float]
"""First word, first word after the span, label and probability."""


class Biaffine(nn.Module):
    """Biaffine scores of all pairs of words, `[s; 1] U [e; 1]`, with a linear layer for each side.

    Args:
        n_scores: number of scores per pair.
        hidden_size: width of the words.
        biaffine_size: width of the layers `s` and `e`.
        dropout_prob: probability of zeroing a feature while training.
        initializer_range: standard deviation of the normal distribution that initializes the weights.

    Source: Yu, Bohnet & Poesio, 2020, "Named Entity Recognition as Dependency Parsing", equation 1; the
    appended ones make its linear term and bias part of `U`.
    """

    def __init__(
        self,
        n_scores: int,
        *,
        hidden_size: int,
        biaffine_size: int,
        dropout_prob: float,
        initializer_range: float,
    ) -> None:
        super().__init__()
        self.dropout = nn.Dropout(dropout_prob)
        self.start = nn.Linear(hidden_size, biaffine_size)
        self.end = nn.Linear(hidden_size, biaffine_size)
        # A linear layer, so it is initialized and decayed like all others.
        self.pairs = nn.Linear(biaffine_size + 1, n_scores * (biaffine_size + 1), bias=False)
        init_weights(self, initializer_range)

    def forward(self, words: Tensor) -> Tensor:
        """Score all pairs, [batch, words, words, n_scores], of the words [batch, words, hidden_size]."""
        start, end = (
            F.pad(self.dropout(F.relu(layer(words))), (0, 1), value=1.0) for layer in (self.start, self.end)
        )
        sides = self.pairs(start).unflatten(-1, (-1, end.shape[-1]))  # [batch, words, n_scores, size + 1]
        return torch.einsum("bikd,bjd->bijk", sides, end)


@dataclass(eq=False, repr=False)
class PairHead(Head):
    """Base class of heads that score pairs of words; a subclass creates its scorers.

    Args:
        n_classes: number of labels; label ids run from 0 to `n_classes - 1`.
        hidden_size: width of the backbone's encoder outputs.
        dropout_prob: probability of zeroing a feature while training.
        initializer_range: standard deviation of the normal distribution that initializes the weights.
        biaffine_size: width of the layers below the biaffine one.

    Raises:
        ConfigError: if settings are invalid; lists all of them.
    """

    n_classes: PositiveInt
    hidden_size: PositiveInt
    dropout_prob: Probability = 0.1
    initializer_range: PositiveFloat = 0.02
    _: KW_ONLY
    biaffine_size: PositiveInt = 150

    def __post_init__(self) -> None:
        super().__post_init__()
        super().__init__()
        sizes = ("hidden_size", "biaffine_size", "dropout_prob", "initializer_range")
        self.sizes: dict[str, Any] = {name: getattr(self, name) for name in sizes}
        self.inputs_attr = {
            "encoder_outputs": TensorSpec(("batch", "seq", self.hidden_size), torch.float),
            "word_starts": TensorSpec(("batch", "words"), torch.long),
        }
        self.dropout = nn.Dropout(self.dropout_prob)

    def words_of(self, features: Tensors) -> Tensor:
        """Gather the encoder's outputs at first subwords, [batch, words, width]; at `[CLS]` for padding."""
        tokens = features["encoder_outputs"]
        starts = features["word_starts"][..., None].expand(-1, -1, tokens.shape[-1])
        words: Tensor = self.dropout(tokens.gather(1, starts))
        return words


@HEADS.register("span")
@dataclass(eq=False, repr=False, kw_only=True)
class Span(PairHead):
    """Scores of every pair of a first and a last word for each label and for no span.

    Memory grows with the `batch * words * words * (n_classes + 1)` scores, where `words` is the number of
    words in the longest row, limited by `max_seq_len`.

    Args:
        nested_spans: predict spans inside others, too; False if no true span shares a word with another.

    Source: Yu, Bohnet & Poesio, 2020, "Named Entity Recognition as Dependency Parsing", on the first subwords
    of words.
    """

    card = ("token-classification", "labelled spans of a text, which may nest")
    metrics = ("span_f1",)

    nested_spans: bool = True

    def __post_init__(self) -> None:
        super().__post_init__()
        self.targets_attr = {"span_labels": TensorSpec(("batch", "words", "words"), torch.long)}
        self.outputs_attr = {
            "logits": TensorSpec(("batch", "words", "words", self.n_classes + 1), torch.float),
            "word_counts": TensorSpec(("batch",), torch.long),
        }
        self.scorer = Biaffine(self.n_classes + 1, **self.sizes)

    def forward(self, features: Tensors) -> Tensors:
        """`logits` [batch, words, words, n_classes + 1], index 0 for no span, and `word_counts` [batch]."""
        return {
            "logits": self.scorer(self.words_of(features)),
            "word_counts": (features["word_starts"] > 0).sum(1),
        }

    def loss(self, outputs: Tensors, targets: Tensors) -> Tensor:
        """Mean cross-entropy over all spans whose label, or absence of one, is known.

        Raises:
            WiringError: if a label is out of range (on a CPU only; a GPU does not report which one).
        """
        total, count = self.summed_loss(outputs, targets)
        return total / count.clamp(min=1)

    def summed_loss(self, outputs: Tensors, targets: Tensors) -> tuple[Tensor, Tensor]:
        """Compute the sum and the number of the terms that `loss` averages."""
        labels = targets["span_labels"]
        try:
            total = F.cross_entropy(outputs["logits"].flatten(0, 2), labels.flatten(), reduction="sum")
        except IndexError:  # labels are counted from 1 here
            raise label_error("span_labels", labels - 1, outputs["logits"].shape[-1] - 1) from None
        return total, (labels != NO_LABEL).sum()

    def num_terms(self, batch: Tensors) -> int:
        """Count the known spans; the rows if there are no targets."""
        known = batch.get("span_labels")
        return super().num_terms(batch) if known is None else int((known != NO_LABEL).sum())

    def decode(self, outputs: Tensors) -> list[dict[str, Any]]:
        """Per row `spans`: (first word, first word after the span, label, probability), in text order.

        Spans are selected by descending score; a span that crosses a selected one is skipped, and without
        `nested_spans` also one that lies inside another.
        """
        rows = zip(outputs["logits"], outputs["word_counts"].tolist(), strict=True)
        nested = self.nested_spans
        return [{"spans": sorted(best_spans(logits[:count, :count], nested))} for logits, count in rows]


def best_spans(logits: Tensor, nested: bool = True) -> Iterator[ScoredSpan]:
    """Yield the labelled spans by descending score, without those that cross an earlier one.

    Args:
        logits: logits of one row, [words, words, n_classes + 1], index 0 for no span.
        nested: False to leave out a span that shares a word with an earlier one.

    Source: Yu et al., 2020, section 3, the decoding of nested and of flat entities.
    """
    scores, labels = logits[..., 1:].max(-1)
    chosen = torch.triu(scores > logits[..., 0])
    order = scores[chosen].argsort(descending=True, stable=True)
    probs = logits[chosen].softmax(-1).amax(-1)[order].tolist()
    places = chosen.nonzero()[order].tolist()
    # Of the selected spans: the last word of the longest from each word, and the first of the longest to it.
    last_from = np.arange(len(logits))
    first_to = np.arange(len(logits))
    is_taken = np.zeros(len(logits), dtype=bool)
    for (first, last), label, prob in zip(places, labels[chosen][order].tolist(), probs, strict=True):
        words = slice(first, last + 1)
        if not nested and is_taken[words].any():
            continue
        if (last_from[first + 1 : last + 1] <= last).all() and (first_to[first:last] >= first).all():
            last_from[first] = max(last_from[first], last)
            first_to[last] = min(first_to[last], first)
            is_taken[words] = True
            yield first, last + 1, label, prob
