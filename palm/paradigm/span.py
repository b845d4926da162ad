"""Spans of words that may nest: every pair of a first and a last word is scored for each label."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from palm.core.checks import count_problems, raise_any
from palm.core.numerics.layers import init_weights
from palm.core.tensor_specs import NO_LABEL, Tensors, TensorSpec
from palm.paradigm.base import HEADS, Head, head_problems
from palm.paradigm.class_loss import label_error

ScoredSpan = tuple[int, int, int, float]
"""First word, first word after it, label and probability."""


class Biaffine(nn.Module):
    """Scores of all pairs of words, `[s; 1] U [e; 1]` with a layer for each side (equation 1 of the paper).

    Args:
        n_scores: scores of each pair.
        hidden_size: width of the words.
        biaffine_size: width of the layers `s` and `e`.
        dropout_prob: probability of zeroing a feature while training.
        initializer_range: sigma of the normal that the weights start from.

    Source: Yu, Bohnet & Poesio, 2020, "Named Entity Recognition as Dependency Parsing"; the ones make the
    linear term and the bias of its equation a part of `U`.
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
        # As a linear layer, so that it starts, and is decayed, as all others.
        self.pairs = nn.Linear(biaffine_size + 1, n_scores * (biaffine_size + 1), bias=False)
        init_weights(self, initializer_range)

    def forward(self, words: Tensor) -> Tensor:
        """Scores [batch, words, words, n_scores] of words [batch, words, hidden_size]."""
        start, end = (
            F.pad(self.dropout(F.relu(layer(words))), (0, 1), value=1.0) for layer in (self.start, self.end)
        )
        sides = self.pairs(start).unflatten(-1, (-1, end.shape[-1]))  # [batch, words, n_scores, size + 1]
        return torch.einsum("bikd,bjd->bijk", sides, end)


class PairHead(Head):
    """Base of heads that score pairs of words; a subclass makes its scorers in `take`.

    Args:
        n_classes: number of labels; label ids run from 0 to `n_classes - 1`.
        hidden_size: width of the backbone's encoder outputs.
        dropout_prob: probability of zeroing a feature while training.
        initializer_range: sigma of the normal that the weights start from.
        biaffine_size: width of the layers below the biaffine one.
        own: settings of `take`.

    Raises:
        ConfigError: with every setting that is wrong.
    """

    own_settings = "take"

    def __init__(
        self,
        n_classes: int,
        hidden_size: int,
        dropout_prob: float = 0.1,
        initializer_range: float = 0.02,
        *,
        biaffine_size: int = 150,
        **own: Any,
    ) -> None:
        super().__init__()
        problems = count_problems(n_classes=n_classes, biaffine_size=biaffine_size)
        raise_any(problems + head_problems(hidden_size, initializer_range, dropout_prob))
        self.n_classes = n_classes
        self.sizes: dict[str, Any] = {"hidden_size": hidden_size, "biaffine_size": biaffine_size}
        self.sizes |= {"dropout_prob": dropout_prob, "initializer_range": initializer_range}
        self.inputs_attr = {
            "encoder_outputs": TensorSpec(("batch", "seq", hidden_size), torch.float),
            "word_starts": TensorSpec(("batch", "words"), torch.long),
        }
        self.dropout = nn.Dropout(dropout_prob)
        self.take(**own)

    def take(self) -> None:
        """Take the settings of one head alone; they join those above in its constructor."""

    def words_of(self, features: Tensors) -> Tensor:
        """The encoder's outputs at words' first pieces, [batch, words, width]; for padding, at `[CLS]`."""
        tokens = features["encoder_outputs"]
        starts = features["word_starts"][..., None].expand(-1, -1, tokens.shape[-1])
        words: Tensor = self.dropout(tokens.gather(1, starts))
        return words


@HEADS.register("span")
class Span(PairHead):
    """Scores of every pair of a first and a last word for each label and for no span (Yu et al., 2020).

    Memory is that of `batch * words * words * (n_classes + 1)` scores, with the words of the longest row,
    which `max_seq_len` bounds.

    Source: Yu, Bohnet & Poesio, 2020, "Named Entity Recognition as Dependency Parsing", over the first pieces
    of words.
    """

    metrics = ("span_f1",)

    def take(self) -> None:
        """Add the scorer of spans."""
        self.targets_attr = {"span_labels": TensorSpec(("batch", "words", "words"), torch.long)}
        self.outputs_attr = {
            "logits": TensorSpec(("batch", "words", "words", self.n_classes + 1), torch.float),
            "word_counts": TensorSpec(("batch",), torch.long),
        }
        self.scorer = Biaffine(self.n_classes + 1, **self.sizes)

    def forward(self, features: Tensors) -> Tensors:
        """`logits` [batch, words, words, n_classes + 1], no span first, and `word_counts` [batch]."""
        return {
            "logits": self.scorer(self.words_of(features)),
            "word_counts": (features["word_starts"] > 0).sum(1),
        }

    def loss(self, outputs: Tensors, targets: Tensors) -> Tensor:
        """Mean cross-entropy of all spans of the rows' words, without those that are not known.

        Raises:
            WiringError: if a label is none of the classes (on a CPU; a GPU cannot say which).
        """
        total, count = self.summed_loss(outputs, targets)
        return total / count.clamp(min=1)

    def summed_loss(self, outputs: Tensors, targets: Tensors) -> tuple[Tensor, Tensor]:
        """The sum of which `loss` is the mean, and its number of terms."""
        labels = targets["span_labels"]
        try:
            total = F.cross_entropy(outputs["logits"].flatten(0, 2), labels.flatten(), reduction="sum")
        except IndexError:  # labels are counted from 1 here
            raise label_error("span_labels", labels - 1, outputs["logits"].shape[-1] - 1) from None
        return total, (labels != NO_LABEL).sum()

    def num_terms(self, batch: Tensors) -> int:
        """The spans of words that have a label or none; the rows where there are no targets."""
        known = batch.get("span_labels")
        return super().num_terms(batch) if known is None else int((known != NO_LABEL).sum())

    def decode(self, outputs: Tensors) -> list[dict[str, Any]]:
        """Per row `spans`: (first word, first word after it, label, probability), in order of the text.

        They are taken in order of their scores, without those that cross one that is taken.
        """
        rows = zip(outputs["logits"], outputs["word_counts"].tolist(), strict=True)
        return [{"spans": sorted(best_spans(logits[:count, :count]))} for logits, count in rows]


def best_spans(logits: Tensor) -> Iterator[ScoredSpan]:
    """Yield the spans that have a label, those of the highest score first, without any that cross one before.

    Args:
        logits: of the words of one row, [words, words, n_classes + 1], those of no span first.

    Source: Yu et al., 2020, section 3, the decoding of nested entities.
    """
    scores, labels = logits[..., 1:].max(-1)
    chosen = torch.triu(scores > logits[..., 0])
    order = scores[chosen].argsort(descending=True, stable=True)
    probs = logits[chosen].softmax(-1).amax(-1)[order].tolist()
    places = chosen.nonzero()[order].tolist()
    # Of the spans that are taken: the last word of the longest from each word, the first of that up to it.
    last_from = np.arange(len(logits))
    first_to = np.arange(len(logits))
    for (first, last), label, prob in zip(places, labels[chosen][order].tolist(), probs, strict=True):
        if (last_from[first + 1 : last + 1] <= last).all() and (first_to[first:last] >= first).all():
            last_from[first] = max(last_from[first], last)
            first_to[last] = min(first_to[last], first)
            yield first, last + 1, label, prob
