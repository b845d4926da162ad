"""Classification: one label per text, from its sentence embedding."""

from __future__ import annotations

from palm.core.errors import ConfigError
from palm.paradigm.base import HEADS
from palm.paradigm.class_head import ClassHead


@HEADS.register("cls")
class Classify(ClassHead):
    """Dropout and one linear layer on the sentence embedding (Devlin et al., 2018, section 4.1).

    Args:
        soft_labels: train on a probability for every label (label_type: soft) instead of one label.

    Raises:
        ConfigError: if settings are invalid; lists all of them.
    """

    metrics = ("accuracy", "macro_f1")

    def setup(self, *, soft_labels: bool = False) -> None:
        """Declare the targets for soft labels."""
        if soft_labels and self.class_loss.focal_gamma:
            raise ConfigError("focal_gamma needs a single true label; set either focal_gamma or soft_labels")
        if soft_labels:
            self.target = "label_probs"
            self.targets_attr = {"label_probs": self.outputs_attr["probs"]}
