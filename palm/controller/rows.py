"""The settings `where`, `split` and `sample`, which choose rows of a table, as files of chosen rows."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from palm.config.run import Key, RunConfig, TaskConfig
from palm.config.settings import TaskSettings
from palm.core.component import did_you_mean
from palm.core.errors import DataError
from palm.core.io import parse_json, wrap_read_errors
from palm.core.logging import logger
from palm.reader import READERS
from palm.reader.tables.columns import TARGETS, Columns, TableRow, cell_text, is_missing
from palm.reader.tables.files import SUFFIX, Selection, data_checksum, keep_selection
from palm.reader.tables.reading import raw_rows

Numbers = npt.NDArray[np.int64]

FILES = {"train": "train_file", "dev": "dev_file", "test": "pred_file"}
"""Part of a table -> the setting for which it is used."""


SETTINGS = ("where", "split", "sample", "sample_per_label")
"""The settings that choose rows."""

Files = dict[str, dict[str, Path]]
"""Task -> part of its table -> the file of the chosen rows."""


def choose_rows(run: RunConfig, for_train: bool, tells: bool = False) -> RunConfig:
    """Return the run with files of chosen rows in place of tables, and with the records for its folder.

    Args:
        run: the run; without such settings it is returned unchanged.
        for_train: choose again, even if a choice is recorded in the run's folder.
        tells: log how many rows were chosen.

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
        task.name: _stored(task, parts, tells)
        for sharing in _by_table(new)
        for task, parts in _choose(sharing)
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
        if known["train"].is_file():
            files[task.name] = {part: path for part, path in known.items() if path.is_file()}
            for path in files[task.name].values():
                _allow(path, task.settings.train_file)
    return files


def _allow(path: Path, table: Path | None) -> None:
    """Allow the rows that a run has chosen from a table, which the configuration names itself."""
    with wrap_read_errors(path, " the selected rows", DataError):
        text = path.read_text("utf-8")
        if parse_json(text.encode())["table"] == str(table):
            keep_selection(path.name, text)


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
    seed = int((settings.split or {}).get("seed", 1))
    keys = [RowKeys(seed, task.reader.settings.get("label_type", "class") == "class") for task in tasks]

    def look_up(names: Sequence[str], place: str, varies: bool) -> None:
        for own in columns:
            own.find(names, place, varies)
        if not varies:
            _check_columns(settings, names, place)

    wanted = _wanted(settings)
    missing = {(name, value) for name, values in wanted.items() for value in values}
    numbers = []
    table_format = readers[0].table_format(path, tasks[0].reader.settings.get("format"))
    rows = raw_rows(path, look_up, table_format)
    # The reader reports rows that cannot be read.
    for number, row in enumerate(row for row in rows if isinstance(row, TableRow)):
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


def _stored(task: TaskConfig, parts: Mapping[str, Sequence[int]], tells: bool) -> dict[str, Path]:
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
        found[part] = keep_selection(_record(task.name, part), text)
    counted = ", ".join(f"{len(rows)} {part}" for part, rows in parts.items())
    if tells:
        logger.info("%s: chosen from %s: %s rows", task.name, path.name, counted)
        if (task.settings.sample or 0) > len(parts["train"]):
            line = "%s: sample is %d, but there are only %d rows to train on, which are all used"
            logger.warning(line, task.name, task.settings.sample, len(parts["train"]))
    return found


@dataclass
class RowKeys:
    """Keys for the texts and labels of a table's rows in one task.

    Args:
        seed: the seed of the selection.
        has_classes: False if labels are numbers, of which most occur once.

    Attributes:
        texts: a hash of each row's texts with the seed; rows with the same texts have the same hash.
        labels: an id for each row's label; -1 for a row without a label.
    """

    seed: int
    has_classes: bool = True
    texts: list[int] = field(default_factory=list)
    labels: list[int] = field(default_factory=list)
    _codes: dict[str, int] = field(default_factory=dict)

    def add(self, texts: Sequence[Any], label: Any) -> None:
        """Add the next row."""
        content = json.dumps([self.seed, *texts], default=str).encode()
        self.texts.append(int.from_bytes(hashlib.blake2b(content, digest_size=7).digest(), "big"))
        name = "" if isinstance(label, list) else cell_text(label)
        unknown = is_missing(label) and label != []  # an empty list says that a text has no labels
        self.labels.append(-1 if unknown else self._codes.setdefault(name, len(self._codes)))


def split(keys: Sequence[RowKeys], fractions: Mapping[str, float]) -> dict[str, Numbers]:
    """Split rows into parts, stratified by the labels of all tasks, with equal texts in the same part.

    A row of each label stays in `train`, unless labels are numbers.

    Args:
        keys: the keys of each task that uses the table.
        fractions: part -> its fraction of the rows; the remaining rows are `train`.
    """
    if not fractions or not keys[0].texts:
        return {name: np.arange(len(keys[0].texts)) for name in ("train", *fractions)}
    groups = _groups(np.asarray([each.texts for each in keys], dtype=np.int64))
    _, firsts, owners, sizes = np.unique(groups, return_index=True, return_inverse=True, return_counts=True)
    strata = [np.asarray(each.labels)[firsts] for each in keys]
    order = np.lexsort((np.asarray(keys[0].texts)[firsts], *strata))
    debts = dict.fromkeys(fractions, 0.0)
    parts = np.zeros(len(firsts), dtype=np.int64)  # 0 is train
    names = ["train", *fractions]
    for group in order.tolist():
        size = int(sizes[group])
        for name, fraction in fractions.items():
            debts[name] += size * fraction
        most = max(debts, key=debts.__getitem__)
        if debts[most] >= size / 2:  # every label gets its fraction up to the size of a group
            debts[most] -= size
            parts[group] = names.index(most)
    for each in (each for each in keys if each.has_classes):
        labels = np.asarray(each.labels)
        # What is not in the training rows cannot be learned.
        for label in np.setdiff1d(labels[labels >= 0], labels[parts[owners] == 0]):
            parts[owners[np.argmax(labels == label)]] = 0
    of_rows = parts[owners]
    return {name: np.flatnonzero(of_rows == number) for number, name in enumerate(names)}


def _groups(texts: Numbers) -> Numbers:
    """A group id for each row; rows that have equal texts in any task, [tasks, rows], are in one group."""
    groups = np.arange(texts.shape[1])
    known = [np.unique(each, return_inverse=True)[1] for each in np.unique(texts, axis=0)]
    while True:
        before = groups
        for inverse in known:
            least = np.full(int(inverse.max(initial=-1)) + 1, len(groups))
            np.minimum.at(least, inverse, groups)
            groups = least[inverse]
        if np.array_equal(before, groups):
            return groups


def sample(keys: RowKeys, rows: Numbers, count: int | None, per_label: int | None) -> Numbers:
    """Sample some of these rows, in the table's order; rows without a label are not sampled.

    Args:
        keys: the keys of the task.
        rows: the rows to sample from.
        count: the number of rows, in proportion to the labels; None for all.
        per_label: the number of rows per label; None for all.
    """
    if count is None and per_label is None:
        return rows
    labels = np.asarray(keys.labels)[rows]
    labelled = rows[labels >= 0] if (labels >= 0).any() else rows
    labels = np.asarray(keys.labels)[labelled]
    order = np.lexsort((np.asarray(keys.texts)[labelled], labels))
    if per_label is not None:
        starts = np.searchsorted(labels[order], labels[order])
        order = order[np.arange(len(order)) - starts < per_label]
    if count is not None and count < len(order):
        order = order[np.arange(count) * len(order) // count]
    return np.sort(labelled[order])
