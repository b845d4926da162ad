"""Settings of torch's kernels hold while a configuration trains, and are put back."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from helpers import tiny
from palm.controller.controller import Controller


@pytest.mark.parametrize("wanted", [False, True])
def test_a_configuration_trains_with_kernels_of_a_fixed_order(tmp_path: Path, wanted: bool) -> None:
    seen = set()
    folder = tiny.write_files(tmp_path)
    config = tiny.config(folder, "cls", num_epochs=0.2, **({"deterministic": True} if wanted else {}))
    hook = torch.nn.modules.module.register_module_forward_pre_hook(
        lambda *_: seen.add(torch.are_deterministic_algorithms_enabled())
    )
    try:
        Controller(config, argv=[]).train()
    finally:
        hook.remove()
    assert seen == {wanted}
    assert not torch.are_deterministic_algorithms_enabled()
