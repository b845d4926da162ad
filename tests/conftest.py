"""What holds for all tests: one thread a process (tiny models are slower with more); shared fixtures."""

from __future__ import annotations

import gc
import os
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import settings

from helpers import tiny
from helpers.loaded import python_loaded

# On a busy machine an example may take any time; that is no fault.
settings.register_profile("palm", deadline=None)
settings.load_profile("palm")


# Collected tests are thousands of objects that live until the end; scanning them took a third of the time.
gc.disable()


def pytest_configure(config: pytest.Config) -> None:
    if config.getoption("numprocesses", None) and not hasattr(config, "workerinput"):
        return  # the process that hands out tests to others would wait for PyTorch before it starts them
    import torch

    torch.set_num_threads(1)
    os.environ.setdefault("OMP_NUM_THREADS", "1")  # of the processes that tests start


def pytest_collection_finish() -> None:
    gc.freeze()
    gc.enable()


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """The data of four tiny tasks, a vocabulary and an encoder's configuration."""
    return tiny.write_files(tmp_path)


@pytest.fixture
def vocab(tmp_path: Path) -> Path:
    """A vocabulary for the readers."""
    from helpers.reader_files import write_vocabulary

    return write_vocabulary(tmp_path)


@pytest.fixture
def interruptible() -> Iterator[None]:
    """Ctrl-C raises KeyboardInterrupt; a process that a shell starts in the background ignores it."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


@pytest.fixture(autouse=True, scope="session")
def data_cache(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """No test uses the data cache of whoever runs it; the workers of a test run share one."""
    base = tmp_path_factory.getbasetemp()
    folder = base.parent if "PYTEST_XDIST_WORKER" in os.environ else base
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PALM_DATA_CACHE", str(folder / "data-cache"))
        yield


@pytest.fixture(autouse=True, scope="session")
def unflushed() -> Iterator[None]:
    """Tests do not wait for the disk; `test_everything_in_a_folder_is_on_the_disk_before_its_name` does."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(os, "fsync", lambda _: None)
        yield


@pytest.fixture(scope="module")
def loaded_python() -> Iterator[list[str]]:
    """Words that run a script as `python` does, in a process that begins with PyTorch and palm loaded."""
    with python_loaded() as words:
        yield words


@pytest.fixture(scope="module")
def loaded_runs(loaded_python: list[str]) -> Iterator[None]:
    """The processes of a grid begin with PyTorch and palm loaded."""
    from palm.core.process import START

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("palm.experiments.grid.START", [*loaded_python, START[-1]])
        yield
