"""The rows of a table that are chosen for a part of it: written down as a file that is read like a table."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from palm.core.errors import DataError
from palm.core.files.untrusted import parse_json, wrap_read_errors
from palm.reader.tables.files import digest_of, files_of
from palm.reader.tables.record import cell_text, is_missing

ENDING = ".rows.json"
_FORMAT = "palm-rows"

Numbers = npt.NDArray[np.int64]


@dataclass(frozen=True)
class Selection:
    """The chosen rows of a table.

    Args:
        table: its path.
        sha256: the checksum of its files.
        rows: their numbers, from 0, among those that can be read.
        settings: those that chose the rows.
    """

    table: Path
    sha256: str
    rows: Sequence[int]
    settings: Mapping[str, Any]

    @property
    def key(self) -> str:
        """A hash of the table's bytes and the rows; places do not count."""
        return hashlib.sha256(json.dumps([self.sha256, list(self.rows)]).encode()).hexdigest()

    @property
    def text(self) -> str:
        """The content of its file."""
        return (
            json.dumps({"format": _FORMAT, "version": 1, **vars(self)}, ensure_ascii=False, default=str)
            + "\n"
        )


def is_selection(path: Path) -> bool:
    """Tell whether a path is that of chosen rows."""
    return path.name.endswith(ENDING)


def read_selection(path: Path) -> Selection:
    """Read a file of chosen rows.

    Raises:
        DataError: it cannot be read, or is something else.
    """
    return _read(path, path.is_file() and _facts(path))


@lru_cache(maxsize=16)
def _read(path: Path, facts: object) -> Selection:  # noqa: ARG001 - they tell whether it is the same file
    with wrap_read_errors(path, " the chosen rows", DataError):
        content = parse_json(path.read_bytes())
        if content["format"] != _FORMAT or not all(type(row) is int and row >= 0 for row in content["rows"]):
            raise ValueError("it does not hold rows that palm chose")
        return Selection(Path(content["table"]), content["sha256"], content["rows"], content["settings"])


def chosen_of(path: Path, files: Iterable[Path]) -> bytes:
    """Mark the chosen rows of a table by 1, up to the last of them.

    Args:
        path: the file of chosen rows.
        files: of the table.

    Raises:
        DataError: the table has changed since.
    """
    selection = read_selection(path)
    if _digest(tuple(map(_facts, files))) != selection.sha256:
        raise DataError(
            f"{selection.table}: the table has changed since its rows were chosen ({path}); train anew, "
            "or bring the table back"
        )
    return np.bincount(np.asarray(selection.rows, dtype=np.int64)).astype(np.uint8).tobytes()


def _facts(file: Path) -> tuple[Path, int, int]:
    return file, file.stat().st_size, file.stat().st_mtime_ns


@lru_cache(maxsize=16)
def _digest(facts: tuple[tuple[Path, int, int], ...]) -> str:
    return digest_of([file for file, *_ in facts])


def data_checksum(path: Path, algorithm: str = "sha256") -> str:
    """The hexadecimal hash of a data file's bytes, or of chosen rows; see `digest_of`.

    Raises:
        OSError: a file cannot be read.
        DataError: there is none.
    """
    return read_selection(path).key if is_selection(path) else digest_of(files_of(path), algorithm)


def table_of(path: Path) -> Path:
    """The table of which a file has chosen rows, or else the path itself."""
    return read_selection(path).table if is_selection(path) else path


@dataclass
class RowKeys:
    """Keys of the texts of a table's rows, and their labels, for a task.

    Args:
        seed: of the choice.

    Attributes:
        texts: a number for each row, the same for the same texts; as random as a hash with the seed.
        labels: a number for each row's label; -1 for a row without one.
    """

    seed: int
    texts: list[int] = field(default_factory=list)
    labels: list[int] = field(default_factory=list)
    _codes: dict[str, int] = field(default_factory=dict)

    def add(self, texts: Sequence[Any], label: Any) -> None:
        """Take the next row."""
        content = json.dumps([self.seed, *texts], default=str).encode()
        self.texts.append(int.from_bytes(hashlib.blake2b(content, digest_size=7).digest(), "big"))
        name = "" if isinstance(label, list) else cell_text(label)
        self.labels.append(-1 if is_missing(label) else self._codes.setdefault(name, len(self._codes)))


def split(keys: Sequence[RowKeys], fractions: Mapping[str, float]) -> dict[str, Numbers]:
    """Divide rows into parts: by label (of several tasks, by all of them), equal texts in the same part.

    Args:
        keys: those of each task that uses the table.
        fractions: part -> its fraction of the rows; the others are `train`.
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
        if debts[most] >= size / 2:  # so every label has its part to within a group
            debts[most] -= size
            parts[group] = names.index(most)
    of_rows = parts[owners]
    return {name: np.flatnonzero(of_rows == number) for number, name in enumerate(names)}


def _groups(texts: Numbers) -> Numbers:
    """A number for each row, the same for rows that some task's texts [tasks, rows] make equal."""
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
    """Choose some of these rows by chance, in the table's order; rows without a label are none of them.

    Args:
        keys: of the task.
        rows: to choose from.
        count: how many, of each label its share; all where None.
        per_label: how many of each label; all where None.
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
