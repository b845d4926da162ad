"""Detection of tasks in the first rows of a table: one for every column that looks like labels."""

from __future__ import annotations

import json
import re
import unicodedata
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import chain, count, islice, pairwise
from pathlib import Path
from types import MappingProxyType
from typing import Any

from palm.cli.starter.project import KINDS
from palm.core.component import did_you_mean
from palm.core.errors import ConfigError
from palm.core.io import parse_json
from palm.core.logging import logger
from palm.reader.tables.columns import USUAL, cell_text, is_missing
from palm.reader.tables.reading import raw_rows, usable

ROWS = 2000
"""Number of rows to examine."""

MOST_LABELS = 100
LONGEST_LABEL = 60

ROWS_OF_LARGE_BATCHES = 100
"""Number of pairs from which `batch_size: 32` is written; fewer would be two steps an epoch at most."""

MOST_STEPS = 10
"""Number of labels 1, 2, 3 … up to which they are taken for a scale."""

LISTS = {"choices": "multiple_choice", "candidates": "ranking"}
"""Column with lists of texts -> kind of the task, whose label chooses one of them, or rates them."""

SEPARATORS = ",;|"
"""Characters that may separate several labels in a cell."""

OF_A_LABEL = ("cls", "ordinal", "match", "count", "regression")
"""Kinds of tasks that a user may name for a column of labels."""

_NUMBER = re.compile(r"[-+]?([0-9]*\.)?[0-9]+([eE][-+]?[0-9]+)?")
_CHINESE = re.compile("[\u3040-\u30ff\u4e00-\u9fff]")  # a word has about two of these characters


@dataclass(frozen=True)
class TableTasks:
    """The tasks of a table.

    Args:
        kinds: name -> kind.
        files: name -> the content of the task's file.
        texts: of the first rows.
    """

    kinds: dict[str, str] = field(default_factory=dict)
    files: dict[str, str] = field(default_factory=dict)
    texts: list[str] = field(default_factory=list)

    @property
    def compares(self) -> bool:
        """True if a task compares texts of a row."""
        comparing = {*LISTS.values(), "mrc"}
        return any(kind in comparing or '"text_b"' in self.files[task] for task, kind in self.kinds.items())

    @property
    def has_order(self) -> bool:
        """True if a task labels or predicts words, and none compares texts."""
        return bool({*self.kinds.values()} & {"seq_label", "span", "relation", "mlm"}) and not self.compares

    def add(self, name: str, path: Path, settings: dict[str, Any], columns: dict[str, str]) -> None:
        """Add a task, named after its column."""
        task = _unused(re.sub(r"\W+", "_", name).strip("_0123456789") or "task", self.kinds)
        self.kinds[task] = kind if (kind := settings["paradigm"]) in KINDS else settings["reader"]
        self.files[task] = _yaml({**settings, "train_file": str(path.absolute()), "columns": columns})
        for one, other in _twins(settings.get("label_map", ())):
            logger.warning("%s: the labels %r and %r look the same; make them equal", name, one, other)


def _twins(labels: Iterable[str]) -> Iterator[tuple[str, str]]:
    """Yield labels that differ in case, blanks or invisible characters only, each with an earlier one."""
    seen: dict[str, str] = {}
    for label in labels:
        shown = "".join(letter for letter in label.casefold() if unicodedata.category(letter)[0] not in "CZ")
        if (other := seen.setdefault(shown, label)) != label:
            yield other, label


def tasks_in(path: Path, named: Mapping[str, str] = MappingProxyType({})) -> TableTasks:
    """Find the tasks in a table, or in a file in SQuAD's format.

    Args:
        path: the table.
        named: column of labels -> the kind of its task, or the column again for the kind that its labels look
            like; if given, no other column becomes a task.

    Raises:
        DataError: it cannot be read.
        ConfigError: it is the folder of a run; it has no column of texts, or neither a column of labels nor
            a second column of texts; or `named` has an unknown column or kind.
    """
    if (path / "run.json").is_file():  # its files of history would be the parts of a table
        raise ConfigError(f"{path} is the folder of a run; give the table that it was trained on")
    values = _values(path)
    texts = [name for name in values if _is_text(values[name])]
    lists = [name for name in LISTS if {name, "label"} <= values.keys() and texts]
    words = [name for name in values if name not in lists and _is_words(name, values[name])]
    found = TableTasks()
    for name in lists:
        found.add(name, path, {"reader": LISTS[name], "paradigm": LISTS[name]}, {"text_a": texts[0]})
    inputs = {*texts, *words, *lists, *(["label"] if lists else [])}
    if {"question", "context", "answers"} <= values.keys():
        found.add("answers", path, _of_answers(path, values), {})
        texts = ["question", "context"]
        inputs = {*values}
    elif {"spans", "relations"} <= values.keys() and texts + words:
        settings = _of_relations(values["spans"], values["relations"])
        found.add("relations", path, settings, {"text_a": (words or texts)[0]})
        inputs |= {"spans", "relations"}
    labels = {name: values[name] for name in values if name not in inputs}
    for name, kind in named.items():
        _check_named(path, name, kind, labels)
    _add_labels(found, path, {name: labels[name] for name in named or labels}, named, texts, words)
    if not found.files:
        _add_texts(found, path, values, texts)
    cells = chain.from_iterable(values[name] for name in (*texts, *words))
    found.texts.extend([*map(_joined, cells), *chain.from_iterable(chain(*(values[name] for name in lists)))])
    return found


def _add_texts(
    found: TableTasks, path: Path, values: Mapping[str, Sequence[Any]], texts: Sequence[str]
) -> None:
    """Add the task of a table without labels: pairs of texts, or masked words."""
    if len(texts) == 2:
        columns = dict(zip(("text_a", "text_b"), texts, strict=True))
        settings: dict[str, Any] = {"reader": "embedding", "paradigm": "embedding"}
        if len(values[texts[0]]) >= ROWS_OF_LARGE_BATCHES:
            settings["batch_size"] = 32  # a pair's negatives are the other texts of its batch
        found.add("pairs", path, settings, columns)
    elif texts == [*values] != [] and not re.search(r"[;|\t]", texts[0]):
        found.add("words", path, {"reader": "mlm", "paradigm": "mlm"}, {"text_a": texts[0]})
    else:
        expected = "expected a column of texts, and one of labels or texts"
        if len(values) == 1:
            expected += "; columns are separated by commas in a .csv file, and by tabs in a .tsv file"
        raise ConfigError(f"--from {path}: {expected}; found the columns {', '.join(values) or 'of no rows'}")


def _check_named(path: Path, name: str, kind: str, columns: Collection[str]) -> None:
    """Check a column and a kind that the user named."""
    if name not in columns:
        hint = did_you_mean(name, columns) or f"; it has {', '.join(columns)}"
        raise ConfigError(f"--tasks: {path} has no column of labels {name!r}{hint}")
    if kind not in (name, *OF_A_LABEL):
        hint = did_you_mean(kind, OF_A_LABEL)
        raise ConfigError(f"--tasks: {name} cannot be {kind!r}; use {', '.join(OF_A_LABEL)}{hint}")


def _add_labels(
    found: TableTasks,
    path: Path,
    columns: Mapping[str, list[Any]],
    named: Mapping[str, str],
    texts: list[str],
    words: list[str],
) -> None:
    """Add a task for each column that looks like labels of the texts or words, or that has a kind."""
    for name, values in columns.items():
        kind = named.get(name, name)
        settings = _settings(values, bool(words)) if kind == name else _settings_as(kind, values)
        if named and not settings:
            raise ConfigError(f"--tasks: {name} does not look like labels; name its kind: --tasks {name}=cls")
        sources = words if settings.get("reader") == "seq_label" else texts or words
        if settings and sources:
            target = "spans" if settings["reader"] == "span" else "label"
            used = {"text_a": sources[0], target: name, **_second(sources, settings["reader"])}
            found.add(name, path, settings, used)


def _unused(name: str, known: Collection[str]) -> str:
    """Return the name, with a number if another task already has it."""
    names = chain([name], (f"{name}_{number}" for number in count(2)))
    return next(each for each in names if each not in known)


def _joined(cell: str | list[str]) -> str:
    return " ".join(cell) if isinstance(cell, list) else cell


def _values(path: Path) -> dict[str, list[Any]]:
    """Return the values of each column in the first rows."""
    values: dict[str, list[Any]] = {}
    rows = raw_rows(path, default="squad" if _is_squad(path) else None)
    for row in islice(map(usable, rows), ROWS):
        for name, cell in row.cells.items():
            values.setdefault(name, []).extend([] if is_missing(cell) else [cell])
    return {name: _decoded(cells) for name, cells in values.items()}


def _is_squad(path: Path) -> bool:
    return ".json" in path.suffixes


def _decoded(cells: list[Any]) -> list[Any]:
    """Return the lists of a column in JSON, as CSV files have them, or else the cells."""
    try:
        found = [parse_json(cell.encode()) for cell in cells if cell.startswith("[")]
    except (AttributeError, ValueError):
        return cells
    is_lists = len(found) == len(cells) and all(isinstance(each, list) for each in found)
    return [each for each in found if each] if is_lists else cells


def _second(sources: Sequence[str], reader: str) -> dict[str, str]:
    """Return the column of the second text, if one has a usual name for it."""
    pair = [name for name in ("text_b", *USUAL["text_b"]) if name in sources[1:]]
    return {"text_b": pair[0]} if pair and reader in ("cls", "match") else {}


def _of_answers(path: Path, values: Mapping[str, Sequence[Any]]) -> dict[str, Any]:
    """Return the settings of a task with these questions; some of SQuAD 2.0 have no answer."""
    settings = {"reader": "mrc", "paradigm": "mrc", "max_query_len": 24, "doc_stride": 16}
    if not _is_squad(path) or len(values["answers"]) == len(values["question"]):
        return settings
    return {**settings, "with_negative": True, "remove_noanswer": False}


def _of_relations(spans: Sequence[Any], relations: Sequence[Any]) -> dict[str, Any]:
    """Return the settings of a task with these lists of spans and of relations between them."""
    names, of_spans = (
        _numbered(_labels([each["label"] for each in chain(*values) if "label" in each]))
        for values in (relations, spans)
    )
    return {"reader": "relation", "paradigm": "relation", "label_map": names, "span_label_map": of_spans}


def _of_spans(values: Sequence[Sequence[Any]]) -> dict[str, Any]:
    """Return the settings of a task with these lists of spans; empty if they are others."""
    spans = list(chain(*values))
    if not all(isinstance(span, Mapping) and "label" in span for span in spans):
        return {}
    if not all(type(span.get(end)) is int for span in spans for end in ("start", "end")):
        return {}
    names = _numbered(_labels([span["label"] for span in spans]))
    places = (sorted((span["start"], span["end"]) for span in own) for own in values)
    overlap = any(after[0] < before[1] for row in places for before, after in pairwise(row))
    settings = {"reader": "span", "paradigm": "span", "label_map": names}
    return settings if overlap else {**settings, "nested_spans": False}


def _settings(values: Sequence[Any], has_words: bool) -> dict[str, Any]:
    """Return the settings of a task with these labels; empty if they do not look like labels."""
    labels = _labels(values)
    kinds = {isinstance(value, list) for value in values}
    if kinds == {True} and any(isinstance(each, Mapping) for each in chain(*values)):
        return _of_spans(values)
    if kinds == {True}:
        kind = "seq_label" if has_words else "multi_label"
        few = has_words or len(labels) <= MOST_LABELS
        return {"reader": kind, "paradigm": kind, "label_map": _numbered(labels)} if few else {}
    if kinds != {False} or any(isinstance(value, Mapping) for value in values):
        return {}
    if (mark := _separator(labels)) is not None:
        parts = sorted({part.strip() for label in labels for part in label.split(mark)} - {""})
        several = {"reader": "multi_label", "paradigm": "multi_label", "label_separator": mark}
        return {**several, "label_map": _numbered(parts)} if len(parts) <= MOST_LABELS else {}
    return _settings_of_classes(labels, len(values))


def _separator(labels: Sequence[str]) -> str | None:
    """Return what separates the labels in a cell, if the cells have fewer labels than there are cells."""
    for mark in SEPARATORS:
        parts = {part.strip() for label in labels for part in label.split(mark)}
        if len(parts) < len(labels) and any(mark in label for label in labels):
            return mark
    return None


def _settings_as(kind: str, values: Sequence[Any]) -> dict[str, Any]:
    """Return the settings of a task of a kind that the user named."""
    names = {} if kind in ("count", "regression") else {"label_map": _numbered(_labels(values))}
    return {"reader": "match" if kind == "match" else "cls", "paradigm": kind, **names}


def _settings_of_classes(labels: Sequence[str], count: int) -> dict[str, Any]:
    is_number = [_NUMBER.fullmatch(label) for label in labels]
    if all(is_number) and any("." in label for label in labels):
        return {"reader": "cls", "paradigm": "regression"}
    few = 2 <= len(labels) <= min(MOST_LABELS, max(2, count // 2))
    if not few or max(map(len, labels)) > LONGEST_LABEL:
        return {}
    if 3 <= len(labels) <= MOST_STEPS and {*labels} == {*map(str, range(1, len(labels) + 1))}:
        return {"reader": "cls", "paradigm": "ordinal", "label_map": _numbered(labels)}  # such as 1 to 5
    is_id = {*labels} == {*map(str, range(len(labels)))}
    names = {"n_classes": len(labels)} if is_id else {"label_map": _numbered(labels)}
    return {"reader": "cls", "paradigm": "cls", "metrics": "accuracy, macro_f1", **names}


def _numbered(labels: Sequence[str]) -> dict[str, int]:
    return {label: number for number, label in enumerate(labels)}


def _labels(values: Sequence[Any]) -> list[str]:
    """Return all labels, numbers in their order."""
    listed = (value if isinstance(value, list) else [value] for value in values)
    names = {*map(cell_text, chain.from_iterable(listed))}
    return sorted(names, key=float if all(map(_NUMBER.fullmatch, names)) else None)


def _is_words(name: str, values: Sequence[Any]) -> bool:
    """Check whether values are lists of words rather than labels."""
    are_lists = all(isinstance(v, list) and all(isinstance(w, str) for w in v) for v in values)
    return bool(values) and are_lists and (name in USUAL["text_a"] or len(_labels(values)) > MOST_LABELS)


def _is_text(values: Sequence[Any]) -> bool:
    """Check whether values are texts: strings of several words that are rarely repeated."""
    if not values or not all(isinstance(value, str) for value in values):
        return False
    words = sum(max(len(value.split()), len(_CHINESE.findall(value)) / 2) for value in values) / len(values)
    return words >= 2 and len({*values}) > min(MOST_LABELS, len(values) / 2)


def _yaml(settings: Mapping[str, Any]) -> str:
    head = "# Found in the first rows of the table; please check it.\n"
    if settings["paradigm"] == "cls" and all(map(_NUMBER.fullmatch, settings.get("label_map", ("",)))):
        head += "# Labels are numbers: if their size matters, use ordinal, or regression without label_map.\n"
    lines = (f"{name}: {json.dumps(value, ensure_ascii=False)}" for name, value in settings.items())
    split = "\nsplit: {dev: 0.1, test: 0.1}   # a tenth of the rows is the dev_file, another the pred_file\n"
    return head + "\n".join(lines) + split
