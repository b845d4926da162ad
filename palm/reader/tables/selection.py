"""Selections of a table's rows, such as a dev split, stored as files that are read like tables."""

from __future__ import annotations

import hashlib
import json
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from itertools import chain, repeat
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from palm.config.files import public
from palm.core.cache import Cache
from palm.core.errors import DataError
from palm.core.io import parse_json, stays_inside, wrap_read_errors
from palm.reader.tables.columns import cell_text, is_missing
from palm.reader.tables.files import digest_of, file_facts, files_of, is_data, is_url, parts_of

SUFFIX = ".rows.json"
_FORMAT = "palm-rows"

Numbers = npt.NDArray[np.int64]


@dataclass(frozen=True)
class Selection:
    """The selected rows of a table.

    Args:
        table: the path of the table.
        sha256: the checksum of the table's files.
        rows: indices of the selected rows among the readable ones.
        settings: the settings that selected the rows.
    """

    table: Path
    sha256: str
    rows: Sequence[int]
    settings: Mapping[str, Any]

    @property
    def key(self) -> str:
        """A hash of the table's bytes and the rows, independent of paths."""
        return hashlib.sha256(json.dumps([self.sha256, list(self.rows)]).encode()).hexdigest()

    @property
    def text(self) -> str:
        """The content of the selection's file."""
        return (
            json.dumps({"format": _FORMAT, "version": 1, **vars(self)}, ensure_ascii=False, default=str)
            + "\n"
        )


def is_selection(path: Path) -> bool:
    """Check whether a path is that of a selection."""
    return path.name.endswith(SUFFIX)


def read_selection(path: Path) -> Selection:
    """Read the file of a selection.

    Raises:
        DataError: the file cannot be read, or is not a selection.
    """
    return _read(path, path.is_file() and file_facts(path))


@lru_cache(maxsize=16)
def _read(path: Path, facts: object) -> Selection:  # noqa: ARG001 - part of the cache key
    with wrap_read_errors(path, " the selected rows", DataError):
        content = parse_json(path.read_bytes())
        are_rows = all(type(row) is int and 0 <= row < sys.maxsize for row in content["rows"])
        if content["format"] != _FORMAT or not are_rows:
            raise ValueError("not a selection of rows written by palm")
        return Selection(Path(content["table"]), content["sha256"], content["rows"], content["settings"])


def chosen_of(path: Path, files: Sequence[Path]) -> Iterator[bool]:
    """Yield for each of the table's rows whether it is selected, up to the last one that is.

    Args:
        path: the file of the selection.
        files: the files of the table.

    Raises:
        DataError: the table has changed since the selection.
    """
    selection = read_selection(path)
    if _digest(tuple(files), tuple(map(file_facts, files))) != selection.sha256:
        raise DataError(
            f"{selection.table}: the table has changed since its rows were selected ({path}); restore the "
            "table, or train again from scratch"
        )
    # Not a mask: the file may name a row that would need any amount of memory.
    gaps = np.diff(np.unique(np.asarray(selection.rows, dtype=np.int64)), prepend=-1).tolist()
    return chain.from_iterable(chain(repeat(False, gap - 1), (True,)) for gap in gaps)


@lru_cache(maxsize=16)
def _digest(files: tuple[Path, ...], facts: object) -> str:  # noqa: ARG001 - part of the cache key
    return digest_of(files)


def data_checksum(path: Path, algorithm: str = "sha256") -> str:
    """The hexadecimal hash of a data file's bytes or of a selection; see `digest_of`.

    Raises:
        DataError: a file is missing or cannot be read.
    """
    return read_selection(path).key if is_selection(path) else digest_of(files_of(path), algorithm)


def table_of(path: Path) -> Path:
    """The table of a selection; any other path is returned unchanged.

    Raises:
        DataError: the selection cannot be read, or names a URL and was not made by this user.
    """
    if not is_selection(path):
        return path
    table = read_selection(path).table
    if any(map(is_url, parts_of(table))) and not stays_inside(Cache.of_anyone().folder, path):
        raise DataError(f"{path}: it names {public(str(table))}, which is not on this machine; copy it here")
    return table


def is_remote(path: Path) -> bool:
    """Check whether a URL is among the files of a table or selection."""
    return any(map(is_url, parts_of(table_of(path))))


def sources_of(path: Path) -> list[Path]:
    """The local files of a table or selection, and that of the selection; nothing is downloaded."""
    table = table_of(path)
    return [path, *([] if is_remote(path) or not is_data(table) else files_of(table))]


@dataclass
class RowKeys:
    """Keys for the texts and labels of a table's rows in one task.

    Args:
        seed: the seed of the selection.

    Attributes:
        texts: a hash of each row's texts with the seed; rows with the same texts have the same hash.
        labels: an id for each row's label; -1 for a row without a label.
    """

    seed: int
    texts: list[int] = field(default_factory=list)
    labels: list[int] = field(default_factory=list)
    _codes: dict[str, int] = field(default_factory=dict)

    def add(self, texts: Sequence[Any], label: Any) -> None:
        """Add the next row."""
        content = json.dumps([self.seed, *texts], default=str).encode()
        self.texts.append(int.from_bytes(hashlib.blake2b(content, digest_size=7).digest(), "big"))
        name = "" if isinstance(label, list) else cell_text(label)
        self.labels.append(-1 if is_missing(label) else self._codes.setdefault(name, len(self._codes)))


def split(keys: Sequence[RowKeys], fractions: Mapping[str, float]) -> dict[str, Numbers]:
    """Split rows into parts, stratified by the labels of all tasks, with equal texts in the same part.

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
    """Sample some of these rows, in the table's order; rows without a label are never sampled.

    Args:
        keys: the keys of the task.
        rows: the rows to sample from.
        count: the number of rows, in proportion to the labels; None for all.
        per_label: the number of rows per label; None for all.
    """
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
