"""Machine reading comprehension: the start and end of an answer in the sequence."""

from __future__ import annotations

from dataclasses import KW_ONLY, dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from palm.core.component import PositiveFloat, PositiveInt
from palm.core.layers import init_weights
from palm.core.saved import NO_LABEL, Tensors, TensorSpec
from palm.paradigm.base import HEADS, TokenHead

PADDING_LOGIT = -1e9
"""Logit of padding: finite, so arithmetic on it is safe, and low enough that its probability is 0."""


@HEADS.register("mrc")
@dataclass(eq=False, repr=False)
class MRC(TokenHead):
    """One linear layer that predicts a start and an end logit per token (Devlin et al., 2018, section 4.2).

    Args:
        hidden_size: width of the backbone's encoder outputs.
        max_answer_len: maximum length of an answer, in tokens; None, which PaddlePALM allows, means 30.
        n_best_size: number of best starts, and of best ends, that are paired into spans; and of answers per
            question in `nbest_predictions.json`.
        with_negative: allow questions without an answer, which is predicted as the span of `[CLS]`.
        null_score_diff_threshold: predict no answer if its score exceeds that of the best answer by more.
        initializer_range: standard deviation of the normal distribution that initializes the weights.

    Raises:
        ConfigError: if settings are invalid; lists all of them.
    """

    card = ("question-answering", "answers to questions about a text")
    example = '[("a question", "the text that answers it")]'
    library_model = "ForQuestionAnswering"

    hidden_size: PositiveInt
    _: KW_ONLY
    max_answer_len: PositiveInt | None = 30
    n_best_size: PositiveInt = 20
    with_negative: bool = False
    null_score_diff_threshold: float = 0.0
    initializer_range: PositiveFloat = 0.02

    def __post_init__(self) -> None:
        super().__post_init__()
        super().__init__()
        self.longest = 30 if self.max_answer_len is None else self.max_answer_len
        self.metrics = ("squad2",) if self.with_negative else ("squad",)
        per_token = TensorSpec(("batch", "seq"), torch.float)
        self.inputs_attr = {
            "encoder_outputs": TensorSpec(("batch", "seq", self.hidden_size), torch.float),
            "input_mask": TensorSpec(("batch", "seq"), torch.bool),
        }
        one_per_row = TensorSpec(("batch",), torch.long)
        self.targets_attr = {"start_positions": one_per_row, "end_positions": one_per_row}
        self.outputs_attr = {"start_logits": per_token, "end_logits": per_token}
        self.out = nn.Linear(self.hidden_size, 2)
        init_weights(self, self.initializer_range)

    def forward(self, features: Tensors) -> Tensors:
        """`start_logits` and `end_logits` [batch, seq]; padding has `PADDING_LOGIT`."""
        logits = self.out(self.tokens_of(features))  # [batch, seq, 2]
        logits = logits.masked_fill(~features["input_mask"][..., None], PADDING_LOGIT)
        start, end = logits.unbind(-1)
        return {"start_logits": start, "end_logits": end}

    def loss(self, outputs: Tensors, targets: Tensors) -> Tensor:
        """Mean of the cross-entropies of start and end over the real tokens, of rows with a known answer."""
        start = F.cross_entropy(outputs["start_logits"], targets["start_positions"])
        end = F.cross_entropy(outputs["end_logits"], targets["end_positions"])
        return (start + end) / 2

    def num_terms(self, batch: Tensors) -> int:
        """Count the rows whose answer is known; all of them without targets."""
        known = batch.get("start_positions")
        return super().num_terms(batch) if known is None else int((known != NO_LABEL).sum())

    def decode(self, outputs: Tensors) -> list[dict[str, Any]]:
        """Per row the candidate answers and the score of no answer.

        Returns:
            Per row `spans`, a list of (start, end, start_logit, end_logit), end inclusive: all pairs of the
            `n_best_size` best starts and ends that form an answer of 1 to `max_answer_len` tokens, sorted by
            rank of the start, then of the end; ties go to the lower position. Also `n_best_size`, and
            `null_score`, the sum of both logits of the first token; with negatives also `null`, these logits,
            and `null_threshold`.
        """
        starts, start_logits = self._best(outputs["start_logits"])
        ends, end_logits = self._best(outputs["end_logits"])
        lengths = ends[:, None, :] - starts[:, :, None] + 1  # [batch, n_best, n_best]
        real = (start_logits[:, :, None] > PADDING_LOGIT) & (end_logits[:, None, :] > PADDING_LOGIT)
        rows, s, e = np.nonzero((lengths >= 1) & (lengths <= self.longest) & real)
        chosen = (starts[rows, s], ends[rows, e], start_logits[rows, s], end_logits[rows, e])
        spans = zip(*(values.tolist() for values in chosen), strict=True)
        nulls = zip(outputs["start_logits"][:, 0].tolist(), outputs["end_logits"][:, 0].tolist(), strict=True)
        decoded: list[dict[str, Any]] = []
        for null in nulls:
            decoded.append({"spans": [], "n_best_size": self.n_best_size, "null_score": sum(null)})
            if self.with_negative:
                decoded[-1] |= {"null": null, "null_threshold": self.null_score_diff_threshold}
        for row, span in zip(rows.tolist(), spans, strict=True):
            decoded[row]["spans"].append(span)
        return decoded

    def _best(self, logits: Tensor) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.float32]]:
        """Return the positions and logits of the `n_best_size` highest per row, each [batch, n_best]."""
        ranked, positions = logits.detach().float().sort(dim=1, descending=True, stable=True)
        keep = slice(self.n_best_size)
        return positions[:, keep].cpu().numpy(), ranked[:, keep].cpu().numpy()
