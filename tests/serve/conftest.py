"""One trained run for all tests of the server."""

from __future__ import annotations

from pathlib import Path

import pytest

from helpers import tiny
from palm.controller.controller import Controller


@pytest.fixture(scope="session")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of a run of four tasks that take different texts."""
    folder = tiny.write_files(tmp_path_factory.mktemp("served"))
    config = tiny.config(folder, "cls", "match", "mrc", "span", num_epochs=1)
    Controller(config, argv=[]).train()
    return folder / "out"
