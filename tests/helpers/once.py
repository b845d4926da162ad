"""Folders that are expensive to fill, once for all workers of a test run."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import pytest
from filelock import FileLock


def filled_once(factory: pytest.TempPathFactory, name: str, fill: Callable[[Path], None]) -> Path:
    """Fill a folder, or return the one that another worker has filled."""
    if "PYTEST_XDIST_WORKER" not in os.environ:
        folder = factory.mktemp(name)
        fill(folder)
        return folder
    folder = factory.getbasetemp().parent / name
    done = folder / ".filled"
    with FileLock(folder.with_suffix(".lock")):
        if not done.exists():
            folder.mkdir()
            fill(folder)
            done.touch()
    return folder
