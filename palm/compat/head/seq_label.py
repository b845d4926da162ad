"""`SequenceLabel` with the defaults of PaddlePALM 2.x: a CRF with 1/1000 of the run's learning rate."""

from __future__ import annotations

from collections.abc import Collection
from typing import Any

from palm import paradigm


class SequenceLabel(paradigm.SequenceLabel):
    """The head of `seq_label`, with the defaults of PaddlePALM 2.x if `use_crf` is not given.

    These are `use_crf=True`, `learning_rate=1e-3`, the factor of the learning rate of the CRF's weights, and
    `emission_l2=1e-4`. If `use_crf` is given, the other defaults are those of the YAML settings.
    """

    stands_for = paradigm.SequenceLabel

    @classmethod
    def defaults_2x(cls, given: Collection[str]) -> dict[str, Any]:
        if "use_crf" in given:
            return {}
        return {"use_crf": True, "crf_learning_rate_factor": 1e-3, "emission_l2": 1e-4}
