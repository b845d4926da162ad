"""A run that nobody holds any more makes room for the next one in the same process."""

import gc
import weakref
from pathlib import Path

import pytest

import palm
from palm.cli import main
from palm.train import loop


def test_the_next_run_frees_the_weights_of_the_last(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(loop, "COLLECT_ABOVE", 1)
    assert main(["init", str(tmp_path / "shop"), "--tasks", "cls"]) == 0
    config = str(tmp_path / "shop" / "config.yaml")
    gc.disable()
    try:
        training = palm.Controller(config, argv=[]).training()
        palm.Evaluator(training).evaluate()
        last = weakref.ref(training.model)
        del training
        palm.Controller(config, argv=[]).training()
        assert last() is None
    finally:
        gc.enable()
