"""Heads under the names and with the arguments of PaddlePALM 2.x.

Keyword arguments beyond those of 2.x are settings of the head in `palm.paradigm` that a class stands for.
"""

from __future__ import annotations

from typing import Any

from palm import paradigm
from palm.compat.conventions import Results
from palm.compat.head import base_head
from palm.paradigm import Head

__all__ = ["MRC", "Classify", "Head", "MaskLM", "Match", "SequenceLabel", "base_head"]


class Classify(Results, paradigm.Classify):
    """`palm.paradigm.Classify` with the arguments of 2.x."""

    stands_for = paradigm.Classify

    def __init__(
        self,
        num_classes: int,
        input_dim: int,
        dropout_prob: float = 0.0,
        param_initializer_range: float = 0.02,
        phase: str = "train",
        **settings: Any,
    ) -> None:
        super().__init__(
            num_classes, input_dim, dropout_prob, param_initializer_range, phase=phase, **settings
        )


class Match(Results, paradigm.Match):
    """`palm.paradigm.Match` with the arguments of 2.x."""

    stands_for = paradigm.Match

    def __init__(
        self,
        num_classes: int,
        input_dim: int,
        dropout_prob: float = 0.0,
        param_initializer_range: float = 0.02,
        learning_strategy: str = "pointwise",
        margin: float = 0.5,
        phase: str = "train",
        **settings: Any,
    ) -> None:
        super().__init__(
            num_classes,
            input_dim,
            dropout_prob,
            param_initializer_range,
            learning_strategy=learning_strategy,
            margin=margin,
            phase=phase,
            **settings,
        )


class SequenceLabel(Results, paradigm.SequenceLabel):
    """`palm.paradigm.SequenceLabel` with the arguments and the CRF of 2.x.

    Args:
        learning_rate: factor of the learning rate of the CRF's weights.
    """

    stands_for = paradigm.SequenceLabel

    def __init__(
        self,
        num_classes: int,
        input_dim: int,
        dropout_prob: float = 0.0,
        learning_rate: float = 1e-3,
        param_initializer_range: float = 0.02,
        phase: str = "train",
        *,
        use_crf: bool = True,
        emission_l2: float = 1e-4,
        **settings: Any,
    ) -> None:
        super().__init__(
            num_classes,
            input_dim,
            dropout_prob,
            param_initializer_range,
            use_crf=use_crf,
            crf_learning_rate_factor=learning_rate,
            emission_l2=emission_l2,
            phase=phase,
            **settings,
        )


class MRC(Results, paradigm.MRC):
    """`palm.paradigm.MRC` with the arguments of 2.x; those about texts and files are the reader's here."""

    stands_for = paradigm.MRC

    def __init__(
        self,
        max_query_len: int,
        input_dim: int,
        pred_output_path: str | None = None,
        verbose: bool = False,
        with_negative: bool = False,
        do_lower_case: bool = False,
        max_ans_len: int | None = None,
        null_score_diff_threshold: float = 0.0,
        n_best_size: int = 20,
        phase: str = "train",
        **settings: Any,
    ) -> None:
        del max_query_len, pred_output_path, verbose, do_lower_case
        super().__init__(
            input_dim,
            max_answer_len=max_ans_len,
            n_best_size=n_best_size,
            with_negative=with_negative,
            null_score_diff_threshold=null_score_diff_threshold,
            phase=phase,
            **settings,
        )


class MaskLM(Results, paradigm.MaskLM):
    """`palm.paradigm.MaskLM` with the arguments of 2.x; the head has no dropout."""

    stands_for = paradigm.MaskLM

    def __init__(
        self,
        input_dim: int,
        vocab_size: int,
        hidden_act: str,
        dropout_prob: float = 0.0,
        param_initializer_range: float = 0.02,
        phase: str = "train",
        **settings: Any,
    ) -> None:
        del dropout_prob
        super().__init__(
            input_dim,
            vocab_size,
            hidden_act,
            initializer_range=param_initializer_range,
            phase=phase,
            **settings,
        )
