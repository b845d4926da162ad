"""Classification: one label per text, from its sentence embedding."""

from __future__ import annotations

from palm.paradigm.base import HEADS
from palm.paradigm.class_head import ClassHead


@HEADS.register("cls")
class Classify(ClassHead):
    """Dropout and one linear layer on the sentence embedding (Devlin et al., 2018, section 4.1).

    The settings of every classification head are described in `ClassHead`.

    Args:
        soft_labels: train on a probability for every label (label_type: soft) instead of one label.

    Raises:
        ConfigError: if settings are invalid; lists all of them.
    """

    card = ("text-classification", "text classification")
    metrics = ("accuracy", "macro_f1")

    def __init__(
        self,
        n_classes: int,
        hidden_size: int,
        dropout_prob: float = 0.1,
        initializer_range: float = 0.02,
        *,
        class_weights: str | list[float] | None = None,
        label_smoothing: float = 0.0,
        soft_labels: bool = False,
    ) -> None:
        super().__init__(
            n_classes,
            hidden_size,
            dropout_prob,
            initializer_range,
            class_weights=class_weights,
            label_smoothing=label_smoothing,
        )
        if soft_labels:
            self.target = "label_probs"
            self.targets_attr = {"label_probs": self.outputs_attr["probs"]}
