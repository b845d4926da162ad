"""Classification: one label per text, from its sentence embedding."""

from __future__ import annotations

from palm.paradigm.base import HEADS
from palm.paradigm.class_head import WeightedHead


@HEADS.register("cls")
class Classify(WeightedHead):
    """Dropout and one linear layer on the sentence embedding (Devlin et al., 2018, section 4.1).

    The settings of every classification head are described in `WeightedHead`.

    Raises:
        ConfigError: if settings are invalid; lists all of them.
    """

    card = ("text-classification", "text classification")
    metrics = ("accuracy", "macro_f1")
