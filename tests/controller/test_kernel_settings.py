"""Settings of torch's kernels hold while a configuration trains, and are put back."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from helpers import tiny
from palm.controller.controller import Controller
from palm.core.device import tf32
from palm.train.checkpoint import compared

MATMUL = torch.backends.cuda.matmul


@pytest.mark.parametrize("before", [False, True])
@pytest.mark.parametrize("allowed", [None, False, True])
def test_it_holds_within_and_is_put_back(before: bool, allowed: bool | None) -> None:
    usual, MATMUL.allow_tf32 = MATMUL.allow_tf32, before
    try:
        with tf32(allowed):
            assert MATMUL.allow_tf32 is (before if allowed is None else allowed)
        assert MATMUL.allow_tf32 is before
        with pytest.raises(KeyError), tf32(allowed):
            raise KeyError
        assert MATMUL.allow_tf32 is before
    finally:
        MATMUL.allow_tf32 = usual


@pytest.mark.parametrize("given", [None, True])
def test_a_configuration_trains_and_predicts_with_it(tmp_path: Path, given: bool | None) -> None:
    seen = []
    folder = tiny.write_files(tmp_path)
    config = tiny.config(folder, "cls", num_epochs=0.2, **({} if given is None else {"tf32": given}))
    config["tasks"]["cls"].update(dev_file=str(folder / "cls.tsv"), pred_file=str(folder / "cls.tsv"))
    controller = Controller(config, argv=[])
    hook = torch.nn.modules.module.register_module_forward_pre_hook(
        lambda *_: seen.append(MATMUL.allow_tf32) if not seen or seen[-1] != MATMUL.allow_tf32 else None
    )
    try:
        for act in (controller.train, lambda: controller.pred("cls"), lambda: controller.evaluate("cls")):
            seen.clear()
            act()
            assert seen == [bool(given)]
            assert MATMUL.allow_tf32 is False
    finally:
        hook.remove()
    assert compared(controller.training()).get("tf32") is given


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
