"""The settings `where`, `split` and `sample`, which choose rows of a table, as files of chosen rows."""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from palm.core.cache import Cache
from palm.core.errors import DataError
from palm.core.io import write_text
from palm.core.logging import logger
from palm.core.registry import did_you_mean
from palm.reader.tables.columns import TARGETS, Columns
from palm.reader.tables.reading import ignore, raw_rows
from palm.reader.tables.record import TableRow, cell_text
from palm.reader.tables.selection import SUFFIX, Numbers, RowKeys, Selection, data_checksum, sample, split

FILES = {"train": "train_file", "dev": "dev_file", "test": "pred_file"}
"""Part of a table -> the setting for which it is used."""


@dataclass(frozen=True, kw_only=True)
class RowSettings:
    """The choice of rows of a task's train_file.

    Args:
        where: column of the file -> the value, or list of values, that its rows must have.
        split: parts split off the train_file, `{dev: 0.1, test: 0.1}`, as dev_file and pred_file: random and
            stratified by label, with equal texts in one part; also a `seed`, 1 by default.
        sample: number of its rows to train on, stratified by label.
        sample_per_label: number of rows of each label to train on.
    """

    where: dict[str, Any] | None = None
    split: dict[str, float] | None = None
    sample: int | None = None
    sample_per_label: int | None = None

    @property
    def fractions(self) -> dict[str, float]:
        """The fractions of the parts other than training."""
        return {part: fraction for part, fraction in (self.split or {}).items() if part != "seed"}

    @property
    def seed(self) -> int:
        """The seed for split and sample."""
        return int((self.split or {}).get("seed", 1))

    def wants(self, row: TableRow) -> bool:
        """Check whether a row has the values that `where` asks for."""
        return all(
            cell_text(row.cells.get(name)) in map(cell_text, value if isinstance(value, list) else [value])
            for name, value in (self.where or {}).items()
        )

    def check_columns(self, names: Sequence[str], place: str) -> None:
        """Check that a file has the columns that `where` names.

        Raises:
            DataError: it lacks one.
        """
        for name in (name for name in self.where or {} if name not in names):
            hint = did_you_mean(name, names) or f"; it has {', '.join(names)}"
            raise DataError(f"{place}: where names {name!r}, which is not a column of the file{hint}")

    def problems(self) -> Iterator[tuple[str, str]]:
        """Yield each setting with a wrong value, and the problem."""
        if strange := sorted(self.fractions.keys() - {"dev", "test"}):
            yield "split", f"has {', '.join(strange)}; known: dev, test and seed"
        total = sum(self.fractions.values())
        if not (0 <= total < 1 and all(fraction > 0 for fraction in self.fractions.values())):
            yield "split", f"should have fractions above 0 that leave rows to train on, not {self.split!r}"
        for name, count in (("sample", self.sample), ("sample_per_label", self.sample_per_label)):
            if count is not None and count < 1:
                yield name, f"should be 1 or more, not {count}"


def choose_rows(tasks: Sequence[Any], folder: Path | None, for_train: bool) -> dict[Path, str]:
    """Replace the files of tasks with such settings by files of chosen rows.

    Args:
        tasks: `TaskPlan`s, with `RowSettings` in `rows`.
        folder: the run's folder; unless `for_train`, the choice recorded there is used.
        for_train: choose again, even if a choice is recorded.

    Returns:
        Paths and contents of the records for the run's folder.

    Raises:
        DataError: a table cannot be read.
    """
    tables: dict[str, list[Any]] = {}
    records: dict[Path, str] = {}
    for task in tasks:
        if task.rows == RowSettings() or task.task.get("train_file") is None:
            continue
        known = {} if folder is None else {part: folder / f"{task.name}.{part}{SUFFIX}" for part in FILES}
        if not for_train and known and known["train"].is_file():
            _use_files(task, {part: path for part, path in known.items() if path.is_file()})
            continue
        if for_train:
            _warn_about_files(task)
        key = json.dumps([str(task.task["train_file"]), task.rows.where, task.rows.split], default=str)
        tables.setdefault(key, []).append(task)
    for sharing in tables.values():
        _choose(sharing, folder, records)
    return records


def _warn_about_files(task: Any) -> None:
    for part in task.rows.fractions:
        if task.task.get(FILES[part]) is not None:
            message = "%s: split has %s, and %s is set: the file is used, the rows of the split are left out"
            logger.warning(message, task.name, part, FILES[part])


def _choose(tasks: Sequence[Any], folder: Path | None, records: dict[Path, str]) -> None:
    """Choose the rows of tasks with the same table, `where` and `split`."""
    path = tasks[0].task["train_file"]
    numbers, keys = _keys_of(tasks, path, tasks[0].rows)
    parts = split(keys, tasks[0].rows.fractions)
    # The record identifies the table by its content, not only by its path.
    digest = data_checksum(path)
    for task, of_task in zip(tasks, keys, strict=True):
        train = sample(of_task, parts["train"], task.rows.sample, task.rows.sample_per_label)
        chosen = {part: numbers[rows].tolist() for part, rows in {**parts, "train": train}.items()}
        _store(task, chosen, digest, folder, records)


def _keys_of(tasks: Sequence[Any], path: Path, settings: RowSettings) -> tuple[Numbers, list[RowKeys]]:
    """Read a table once for all its tasks; return the numbers of the wanted rows, and each task's keys."""
    kind, arguments = tasks[0].reader
    columns = [Columns((), task.reader[0].known_columns, task.reader[1].get("columns")) for task in tasks]
    keys = [RowKeys(settings.seed) for _ in tasks]

    def look_up(names: Sequence[str], place: str, varies: bool) -> None:
        for own in columns:
            own.find(names, place, varies)
        if not varies:
            settings.check_columns(names, place)

    numbers = []
    rows = raw_rows(path, look_up, ignore, kind.table_format(path, arguments.get("format")))
    for number, row in enumerate(rows):
        if settings.wants(row):
            numbers.append(number)
            for task, own, of_task in zip(tasks, columns, keys, strict=True):
                cells = own.row(row).cells
                label = next((cells[name] for name in TARGETS if name in cells), None)
                of_task.add([cells.get(name) for name in task.reader[0].split_by], label)
    return np.asarray(numbers, dtype=np.int64), keys


def _store(
    task: Any, parts: Mapping[str, Sequence[int]], digest: str, folder: Path | None, records: dict[Path, str]
) -> None:
    """Write a task's chosen rows to the cache, and add them to the records for the run's folder."""
    settings = {name: value for name, value in vars(task.rows).items() if value is not None}
    found = {}
    for part, rows in parts.items():
        text = Selection(task.task["train_file"], digest, rows, settings).text
        name = f"{task.name}.{part}{SUFFIX}"
        # Named by content, so that processes and runs with the same choice share one file.
        key = hashlib.sha256(os.fsencode(f"{name}\n{text}")).hexdigest()[:32]
        found[part] = Cache.of_anyone().file(
            key, name, f"the rows of {task.name}", partial(write_text, text=text)
        )
        if folder is not None:
            records[folder / name] = text
    _use_files(task, found)
    counted = ", ".join(f"{len(rows)} {part}" for part, rows in parts.items())
    logger.info("%s: chosen from %s: %s rows", task.name, task.task["train_file"].name, counted)


def _use_files(task: Any, found: Mapping[str, Path]) -> None:
    for part, path in found.items():
        if part == "train" or task.task.get(FILES[part]) is None:
            task.task[FILES[part]] = path
