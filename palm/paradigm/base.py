"""The head's side of the contract: features in, outputs, loss and decoded values out."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Iterable, Mapping, Sequence
from types import MappingProxyType
from typing import Any, ClassVar

import numpy.typing as npt
import torch
from torch import Tensor, nn

from palm.core.checks import count_problems, dropout_problems, positive_problems
from palm.core.component import Component, Translate, checked_phase
from palm.core.registry import Registry
from palm.core.tensor_specs import Specs, Tensors
from palm.paradigm.results import Results

Judged = tuple[dict[str, Any], Mapping[str, Any]]
"""The record of an example, which decoding began, and its truth."""

ALIASES_2X = {"input_dim": "hidden_size", "param_initializer_range": "initializer_range"}
"""The spellings of PaddlePALM 2.x that its heads have in common."""


def head_problems(hidden_size: object, initializer_range: object, dropout_prob: object = 0.0) -> list[str]:
    """A line for every setting that most heads have and that is wrong."""
    return [
        *count_problems(hidden_size=hidden_size),
        *dropout_problems(dropout_prob=dropout_prob),
        *positive_problems(initializer_range=initializer_range),
    ]


class Head(Component, Results, nn.Module):
    """A head: it never sees files, tokenizers or paths.

    Attributes:
        computes_in_bf16: whether `forward` is called within `torch.autocast` where the run computes in
            bf16; otherwise it is called outside, because small layers gain nothing by it.
        inputs_attr: tensors that `forward` reads, from the backbone or, where it lacks them, from the batch.
        targets_attr: tensors that `loss` reads, from the batch.
        outputs_attr: tensors that `forward` gives.
        copies: how often a training batch has all of its rows, one after another, each time with dropout of
            its own.
        metrics: names of the metrics of a task with this head that names none;
            the first one decides which model is best.
        rate_factors: parameter's name -> factor of the learning rate that it would have.
        l2_decays: parameter's name -> the fraction of it added to its clipped gradient: the older kind of
            weight decay, which passes through Adam's moments.
        reader_settings: settings that a reader has for this layer where a configuration does not name them.
    """

    only_2x: ClassVar[Mapping[str, Translate]] = {"phase": checked_phase}
    not_called: ClassVar[Mapping[str, str]] = {
        "build": "override forward(features) and loss(outputs, targets), or derive from "
        "palm.head.base_head.Head"
    }
    reader_settings: ClassVar[Mapping[str, Any]] = {}
    computes_in_bf16: ClassVar[bool] = False
    copies: int = 1
    metrics: Sequence[str] = ()
    rate_factors: Mapping[str, float] = MappingProxyType({})
    l2_decays: Mapping[str, float] = MappingProxyType({})
    inputs_attr: Specs
    targets_attr: Specs
    outputs_attr: Specs

    def adapt(self, layers_of: Callable[[str], nn.Module | None]) -> None:
        """Take layers that the backbone's family has before a head's last one, by `layers_of(head)`; once."""

    @abstractmethod
    def forward(self, features: Tensors) -> Tensors:
        """The outputs; the same for training and for prediction."""

    @abstractmethod
    def loss(self, outputs: Tensors, targets: Tensors) -> Tensor:
        """The mean loss of the batch, a scalar."""

    def count_labels(self, labels: npt.NDArray[Any]) -> None:
        """Take the labels of the training data, the head's only target, before the first step."""

    def num_terms(self, batch: Tensors) -> int:
        """Over how many equal terms `loss` is the mean; here, one for each entry of the first target.

        Batches that make one step together, on one device or several, make one mean by it. Without
        targets, the entries of the batch's first tensor are counted.
        """
        return len(batch[next(iter([*self.targets_attr, *batch]))])

    @abstractmethod
    def decode(self, outputs: Tensors) -> list[dict[str, Any]]:
        """One plain value per row of the batch, for `Reader.records`."""

    def tune(self, pairs: Iterable[Judged]) -> Iterable[Judged]:
        """Fit to dev data what is no weight, such as thresholds; here nothing.

        Args:
            pairs: the record and the truth of every example, as `Reader.truths` gives it.

        Returns:
            The same with records of the fitted head, for the metrics.
        """
        return pairs

    def library_parameters(self) -> Tensors:
        """The parameters as another library takes them, which knows nothing of what `tune` fits."""
        return {name: value.detach() for name, value in self.named_parameters()}

    def eval_outputs(self, outputs: Tensors, batch: Tensors) -> list[dict[str, Any]]:  # noqa: ARG002
        """Per row what the outputs say of the truth, where `decode` does not suffice for a metric.

        While evaluating, it is joined to what `decode` gives. Most layers have nothing to add.
        """
        return []


class TokenHead(Head):
    """A head on tokens, with the layers that the backbone's family has before its last one, if it has any.

    Attributes:
        library_model: the end of the name of the same head's classes in `transformers`.
        above: those layers; None where the last layer reads the encoder's outputs.
    """

    library_model: ClassVar[str]

    def __init__(self) -> None:
        super().__init__()
        self.above: Any = None

    def adapt(self, layers_of: Callable[[str], nn.Module | None]) -> None:
        if self.above is None:
            self.above = layers_of(self.library_model)

    def tokens_of(self, features: Tensors) -> Tensor:
        """Compute what the last layer reads, [batch, seq, width]."""
        tokens = features["encoder_outputs"]
        return tokens if self.above is None else self.above(tokens)


def values_by_row(values: Tensors, counts: Tensor) -> list[dict[str, Any]]:
    """Divide what stands one below another among the rows of a batch, as plain values.

    Args:
        values: of the words of all rows, [words, ...] each.
        counts: the words of each row, [batch].
    """
    parts = {name: torch.split(each, counts.tolist()) for name, each in values.items()}
    return [{name: rows[row].tolist() for name, rows in parts.items()} for row in range(len(counts))]


HEADS: Registry[type[Head]] = Registry("head", Head, "paradigm")
