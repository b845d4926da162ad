"""The head interface: features in, outputs, loss and decoded values out."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Iterable, Mapping, Sequence
from types import MappingProxyType
from typing import Any, ClassVar

import numpy.typing as npt
import torch
from torch import Tensor, nn

from palm.core.component import Component, Registry
from palm.core.saved import Specs, Tensors

Judged = tuple[dict[str, Any], Mapping[str, Any]]
"""The record of an example, with the decoded values, and its ground truth."""

Scored = Sequence[tuple[Mapping[str, Any], Mapping[str, Any]]]
"""The same of all examples."""


class Head(Component, nn.Module):
    """Base class of heads; a head never sees files, tokenizers or paths.

    Attributes:
        computes_in_bf16: run `forward` under `torch.autocast` in a bf16 run; False by default, because small
            layers gain nothing from it.
        inputs_attr: tensors that `forward` reads, from the backbone or, if it lacks them, from the batch.
        targets_attr: tensors that `loss` reads from the batch.
        outputs_attr: tensors that `forward` returns.
        metrics: default metrics of a task with this head; the first one decides which model is best.
        rate_factors: parameter name -> factor of its learning rate.
        l2_decays: parameter name -> fraction of it added to its clipped gradient: L2 regularization, which
            Adam's moments include.
        reader_settings: default reader settings for this head.
        card: for model cards, the pipeline tag of the Hugging Face Hub, and a few words about the task.
        example: for model cards, inputs for `predict` as Python code.
    """

    reader_settings: ClassVar[Mapping[str, Any]] = {}
    card: ClassVar[tuple[str, str] | None] = None
    example: ClassVar[str] = '["a text"]'
    computes_in_bf16: ClassVar[bool] = False
    metrics: Sequence[str] = ()
    rate_factors: Mapping[str, float] = MappingProxyType({})
    l2_decays: Mapping[str, float] = MappingProxyType({})
    inputs_attr: Specs
    targets_attr: Specs
    outputs_attr: Specs

    def adapt(self, layers_of: Callable[[str], nn.Module | None]) -> None:
        """Adopt the layers that the backbone's family has below a head's last one; called once.

        Args:
            layers_of: `library_model` -> the layers, or None.
        """

    @abstractmethod
    def forward(self, features: Tensors) -> Tensors:
        """Compute the outputs, identically for training and prediction."""

    @abstractmethod
    def loss(self, outputs: Tensors, targets: Tensors) -> Tensor:
        """Compute the mean loss of the batch, a scalar."""

    def count_labels(self, labels: npt.NDArray[Any]) -> None:
        """Initialize from the labels of the training data, before the first step; does nothing by default.

        Args:
            labels: the values of the head's only target.
        """

    def num_terms(self, batch: Tensors) -> int:
        """Count the equally weighted terms that `loss` averages; by default, the entries of the first target.

        It weights batches that form one step together, on one device or several. Without targets, the
        entries of the batch's first tensor are counted.
        """
        return len(batch[next(iter([*self.targets_attr, *batch]))])

    @abstractmethod
    def decode(self, outputs: Tensors) -> list[dict[str, Any]]:
        """Convert the outputs to one plain value per row of the batch, for `Reader.records`."""

    def tune(self, pairs: Iterable[Judged]) -> Iterable[Judged]:
        """Fit values other than weights, such as thresholds, to dev data; does nothing by default.

        Args:
            pairs: the record of every example and its ground truth, as returned by `Reader.gold`.

        Returns:
            The pairs with the records of the fitted head, for the metrics.
        """
        return pairs

    def loss_of_pairs(self, pairs: Scored) -> float | None:  # noqa: ARG002
        """Compute the loss of records, if that of their batches is unknown; None by default."""
        return None

    def library_parameters(self) -> Tensors:
        """Return the parameters for another library, which does not know the values that `tune` fits."""
        return {name: value.detach() for name, value in self.named_parameters()}

    def eval_outputs(self, outputs: Tensors, batch: Tensors) -> list[dict[str, Any]]:  # noqa: ARG002
        """Compute values per row that a metric needs in addition to those of `decode`; by default none.

        During evaluation they are merged into the values of `decode`.
        """
        return []


class TokenHead(Head):
    """Base class of heads on tokens, with the layers that the backbone's family has below the last one.

    Attributes:
        library_model: suffix of the class names of the same head in `transformers`.
        above: those layers; None if the last layer reads the encoder's outputs.
    """

    library_model: ClassVar[str]

    def __init__(self) -> None:
        super().__init__()
        self.above: Any = None

    def adapt(self, layers_of: Callable[[str], nn.Module | None]) -> None:
        if self.above is None:
            self.above = layers_of(self.library_model)

    def tokens_of(self, features: Tensors) -> Tensor:
        """Compute the input of the last layer, [batch, seq, width]."""
        tokens = features["encoder_outputs"]
        return tokens if self.above is None else self.above(tokens)


def values_by_row(values: Tensors, counts: Tensor) -> list[dict[str, Any]]:
    """Split concatenated values into the rows of a batch, as plain lists.

    Args:
        values: values of the words of all rows, [words, ...] each.
        counts: number of words in each row, [batch].
    """
    parts = {name: torch.split(each, counts.tolist()) for name, each in values.items()}
    return [{name: rows[row].tolist() for name, rows in parts.items()} for row in range(len(counts))]


HEADS: Registry[type[Head]] = Registry("head", Head, "paradigm")
