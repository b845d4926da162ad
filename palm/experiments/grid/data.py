"""Checksums of the data of many runs."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path

from palm.config.run import RunConfig
from palm.core.errors import DataError
from palm.core.io import wrap_read_errors
from palm.reader.tables.remote import is_url
from palm.reader.tables.selection import data_checksum


def data_checksums(runs: Iterable[RunConfig], more: Iterable[Path] = ()) -> dict[str, str]:
    """Return file -> half of its SHA-256 for every data file of runs.

    Args:
        runs: name the training and dev files; each file is read once.
        more: other files.
    """
    tasks = (task.settings for run in runs for task in run.tasks)
    named = (path for task in tasks for path in (task.train_file, task.dev_file))
    given = (path for path in (*named, *more) if path is not None)
    paths = {path if is_url(path) else path.absolute() for path in given}
    return {str(path): data_checksum(path)[:32] for path in sorted(paths)}


def changed_data(checksums: Mapping[str, str]) -> list[str]:
    """Return the files whose content is no longer that of `data_checksums`.

    Raises:
        DataError: a file is missing or cannot be read.
    """
    found = []
    for name, known in checksums.items():
        with wrap_read_errors(name, error=DataError):
            if data_checksum(Path(name))[:32] != known:
                found.append(name)
    return found
