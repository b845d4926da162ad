"""Classification: one label per text, from its sentence embedding."""

from __future__ import annotations

from palm.core.errors import ConfigError
from palm.paradigm.base import HEADS
from palm.paradigm.class_head import ClassHead


@HEADS.register("cls")
class Classify(ClassHead):
    """Dropout and one linear layer on the sentence embedding (Devlin et al., 2018, section 4.1).

    Args:
        soft_labels: whether rows have a probability of every label (label_type: soft), not one label.

    Raises:
        ConfigError: with every setting that is wrong.
    """

    metrics = ("accuracy", "macro_f1")

    def take(self, *, soft_labels: bool = False) -> None:
        """Take the setting of its own."""
        if soft_labels and self.class_loss.focal_gamma:
            raise ConfigError("focal_gamma: soft_labels have no one true label; leave one of them out")
        if soft_labels:
            self.target = "label_probs"
            self.targets_attr = {"label_probs": self.outputs_attr["probs"]}
