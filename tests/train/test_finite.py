"""Numbers that are none are found before they are saved."""

from __future__ import annotations

import pytest
import torch

from palm.core.errors import TrainingError
from palm.train.train_step import check_finite


def test_infinities_and_what_is_not_a_number_are_found_by_name() -> None:
    tensors = {
        "nan": torch.tensor([0.0, float("nan"), 1.0]),
        "large": torch.full((3,), 3e38),  # its square is infinite, it is not
        "infinite": torch.tensor([[1.0, -float("inf")]], dtype=torch.bfloat16),
        "count": torch.tensor(3),
        "empty": torch.zeros(0),
    }
    with pytest.raises(TrainingError) as caught:
        check_finite(tensors, "the model")
    assert "in nan, infinite;" in str(caught.value)
