"""`SequenceLabel` as PaddlePALM 2.x published it: with a CRF, whose rate is a thousandth of the run's."""

from __future__ import annotations

from collections.abc import Collection
from typing import Any

from palm import paradigm

CRF_RATE = 1e-3
EMISSION_L2 = 1e-4


class SequenceLabel(paradigm.SequenceLabel):
    """The head of `seq_label` with the defaults of PaddlePALM 2.x, where `use_crf` is not given.

    That is, `use_crf=True`, `learning_rate=1e-3`, which is the factor of the rate of the CRF's weights, and
    `emission_l2=1e-4`. With `use_crf`, true or false, the other defaults are those of YAML.
    """

    stands_for = paradigm.SequenceLabel

    @classmethod
    def defaults_2x(cls, given: Collection[str]) -> dict[str, Any]:
        if "use_crf" in given:
            return {}
        return {"use_crf": True, "crf_learning_rate_factor": CRF_RATE, "emission_l2": EMISSION_L2}
