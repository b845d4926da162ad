"""The settings `where`, `split` and `sample`, which choose rows of a table, as files of chosen rows."""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from palm.config.run import Key, RunConfig, TaskConfig
from palm.config.settings import TaskSettings
from palm.core.cache import Cache
from palm.core.component import did_you_mean
from palm.core.errors import DataError
from palm.core.io import write_text
from palm.core.logging import logger
from palm.reader import READERS
from palm.reader.tables.columns import TARGETS, Columns, cell_text
from palm.reader.tables.files import is_url, parts_of
from palm.reader.tables.reading import ignore, raw_rows
from palm.reader.tables.selection import SUFFIX, Numbers, RowKeys, Selection, data_checksum, sample, split

FILES = {"train": "train_file", "dev": "dev_file", "test": "pred_file"}
"""Part of a table -> the setting for which it is used."""


SETTINGS = ("where", "split", "sample", "sample_per_label")
"""The settings that choose rows."""

Files = dict[str, dict[str, Path]]
"""Task -> part of its table -> the file of the chosen rows."""


def choose_rows(run: RunConfig, for_train: bool) -> RunConfig:
    """Return the run with files of chosen rows in place of tables, and with the records for its folder.

    Args:
        run: the run; without such settings it is returned unchanged.
        for_train: choose again, even if a choice is recorded in the run's folder.

    Raises:
        DataError: a table cannot be read.
    """
    folder = run.settings.save_path
    choosing = [task for task in run.tasks if _chooses_rows(task.settings)]
    files = {} if for_train or folder is None else _recorded(folder, choosing)
    new = [task for task in choosing if task.name not in files]
    for task in new if for_train else ():
        _warn_about_files(task)
    chosen = {
        task.name: _stored(task, parts) for sharing in _by_table(new) for task, parts in _choose(sharing)
    }
    files |= chosen
    if not files:
        return run
    records = {
        folder / _record(name, part): path.read_text("utf-8")
        for name, parts in chosen.items()
        for part, path in parts.items()
        if folder is not None
    }
    tasks = [replace(task, settings=_using(task.settings, files.get(task.name, {}))) for task in run.tasks]
    origins: dict[Key, str] = {
        (name, FILES[part]): run.place("split", name) or run.placed("train_file", name)
        for name, parts in files.items()
        for part in parts
    }
    return replace(run, tasks=tuple(tasks), files=records, origins={**origins, **run.origins})


def _chooses_rows(settings: TaskSettings) -> bool:
    return settings.train_file is not None and any(getattr(settings, name) is not None for name in SETTINGS)


def _record(task: str, part: str) -> str:
    """Return the name of the file of chosen rows, in the cache and in the run's folder."""
    return f"{task}.{part}{SUFFIX}"


def _recorded(folder: Path, tasks: Sequence[TaskConfig]) -> Files:
    """Return the files of the rows that a run in this folder has chosen before."""
    files: Files = {}
    for task in tasks:
        known = {part: folder / _record(task.name, part) for part in FILES}
        # From a URL, rows are chosen again: a folder that someone made must not name what is downloaded.
        if known["train"].is_file() and not any(map(is_url, parts_of(task.settings.train_file or Path()))):
            files[task.name] = {part: path for part, path in known.items() if path.is_file()}
    return files


def _by_table(tasks: Sequence[TaskConfig]) -> Iterable[list[TaskConfig]]:
    """Group tasks with the same table, `where` and `split`, so that each table is read once."""
    tables: dict[str, list[TaskConfig]] = {}
    for task in tasks:
        settings = task.settings
        key = json.dumps([str(settings.train_file), settings.where, settings.split], default=str)
        tables.setdefault(key, []).append(task)
    return tables.values()


def _using(settings: TaskSettings, files: Mapping[str, Path]) -> TaskSettings:
    """Return the settings with files of chosen rows; files that are named by the user are kept."""
    used: dict[str, Any] = {
        FILES[part]: path
        for part, path in files.items()
        if part == "train" or getattr(settings, FILES[part]) is None
    }
    return replace(settings, **used | dict.fromkeys(SETTINGS)) if files else settings


def _warn_about_files(task: TaskConfig) -> None:
    for part in task.settings.fractions:
        if getattr(task.settings, FILES[part]) is not None:
            message = "%s: split has %s, and %s is set: the file is used, the rows of the split are left out"
            logger.warning(message, task.name, part, FILES[part])


def _choose(tasks: Sequence[TaskConfig]) -> Iterator[tuple[TaskConfig, dict[str, Sequence[int]]]]:
    """Yield tasks with the same table, `where` and `split`, each with part -> the numbers of its rows."""
    settings = tasks[0].settings
    numbers, keys = _keys_of(tasks)
    parts = split(keys, settings.fractions)
    for task, of_task in zip(tasks, keys, strict=True):
        train = sample(of_task, parts["train"], task.settings.sample, task.settings.sample_per_label)
        yield task, {part: numbers[rows].tolist() for part, rows in {**parts, "train": train}.items()}


def _keys_of(tasks: Sequence[TaskConfig]) -> tuple[Numbers, list[RowKeys]]:
    """Read a table once for all its tasks; return the numbers of the wanted rows, and each task's keys."""
    settings = tasks[0].settings
    path = settings.train_file
    assert path is not None
    readers = [READERS[task.reader.name] for task in tasks]
    columns = [
        Columns((), reader.known_columns, task.reader.settings.get("columns"))
        for reader, task in zip(readers, tasks, strict=True)
    ]
    keys = [RowKeys(int((settings.split or {}).get("seed", 1))) for _ in tasks]

    def look_up(names: Sequence[str], place: str, varies: bool) -> None:
        for own in columns:
            own.find(names, place, varies)
        if not varies:
            _check_columns(settings, names, place)

    wanted = _wanted(settings)
    missing = {(name, value) for name, values in wanted.items() for value in values}
    numbers = []
    rows = raw_rows(
        path, look_up, ignore, readers[0].table_format(path, tasks[0].reader.settings.get("format"))
    )
    for number, row in enumerate(rows):
        found = {(name, cell_text(row.cells.get(name))) for name in settings.where or {}}
        missing -= found
        if all(value in wanted[name] for name, value in found):
            numbers.append(number)
            for reader, own, of_task in zip(readers, columns, keys, strict=True):
                cells = own.row(row).cells
                label = next((cells[name] for name in TARGETS if name in cells), None)
                of_task.add([cells.get(name) for name in reader.split_by], label)
    for name, value in sorted(missing):
        raise DataError(f"{path}: where asks for rows with {name} {value!r}, and there are none")
    return np.asarray(numbers, dtype=np.int64), keys


def _wanted(settings: TaskSettings) -> dict[str, list[str]]:
    """Return column -> the values that rows must have, as `where` asks."""
    where = settings.where or {}
    return {
        name: [value] if isinstance(value, str) else list(map(str, value)) for name, value in where.items()
    }


def _check_columns(settings: TaskSettings, names: Sequence[str], place: str) -> None:
    for name in (name for name in settings.where or {} if name not in names):
        hint = did_you_mean(name, names) or f"; it has {', '.join(names)}"
        raise DataError(f"{place}: where names {name!r}, which is not a column of the file{hint}")


def _stored(task: TaskConfig, parts: Mapping[str, Sequence[int]]) -> dict[str, Path]:
    """Write a task's chosen rows to the cache and return the files by part."""
    path = task.settings.train_file
    assert path is not None
    # The record identifies the table by its content, not only by its path.
    digest = data_checksum(path)
    given = {name: getattr(task.settings, name) for name in SETTINGS}
    settings = {name: value for name, value in given.items() if value is not None}
    found = {}
    for part, rows in parts.items():
        text = Selection(path, digest, rows, settings).text
        name = _record(task.name, part)
        # Named by content, so that processes and runs with the same choice share one file.
        key = hashlib.sha256(os.fsencode(f"{name}\n{text}")).hexdigest()[:32]
        found[part] = Cache.of_anyone().file(
            key, name, f"the rows of {task.name}", partial(write_text, text=text)
        )
    counted = ", ".join(f"{len(rows)} {part}" for part, rows in parts.items())
    logger.info("%s: chosen from %s: %s rows", task.name, path.name, counted)
    return found
