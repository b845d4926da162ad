"""A run to report on, trained once."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from helpers import runs


@pytest.fixture(scope="session")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run of four tasks, two of them targets; not to be changed."""
    settings = {"target_tag": "1,0,0,1", "mix_ratio": "1,0.5,0.5,1", "num_epochs": 3, "learning_rate": 3e-3}
    return runs.train(tmp_path_factory.mktemp("report"), **settings)


@pytest.fixture
def run(trained: Path, tmp_path: Path) -> Path:
    """A copy of it."""
    return Path(shutil.copytree(trained, tmp_path / "run"))
