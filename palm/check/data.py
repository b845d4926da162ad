"""The data of one task: one pass over each of its files, and problems within and between them."""

from __future__ import annotations

import hashlib
import re
import unicodedata
import zlib
from array import array
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import islice
from pathlib import Path
from typing import Any, Literal, TypeAlias

import numpy as np
import numpy.typing as npt
from tqdm import tqdm

from palm.core.errors import ConfigError, DataError, PalmError, shortened
from palm.metrics.spans import scheme_of
from palm.reader import Reader, SequenceLabelReader
from palm.reader.cache import encoded_chunks
from palm.reader.inspection import (
    MOST_LETTERS,
    FileStatistics,
    Role,
    examples_of,
    gold_of,
    place_of,
    readable_row,
    shown,
    texts_of,
    tokenizer_of,
)
from palm.reader.rows import BadRows, Rows, TextFacts, part_of
from palm.reader.tables.columns import cut
from palm.reader.tables.files import files_of, is_data, shown_name, table_of

Severity = Literal["error", "warning", "note"]
"""error: the run would stop, or could not start. warning: it would run, but results would be misleading or
rows wasted. note: good to know."""

SEVERITIES: tuple[Severity, ...] = ("error", "warning", "note")


@dataclass(frozen=True)
class Problem:
    """One finding.

    Args:
        severity: how bad it is.
        code: its kind in one word, stable between versions: `leak`, `truncation` ...
        task: the task; empty for the whole run.
        message: place and problem, with numbers.
        remedy: what to do.
        examples: a few affected rows.
    """

    severity: Severity
    code: str
    task: str
    message: str
    remedy: str = ""
    examples: tuple[str, ...] = ()

    def __str__(self) -> str:
        whose = f"{self.task}: " if self.task else ""
        text = f"{self.severity:7}  {whose}{self.message}".replace("\n", "\n         ")
        if self.remedy:
            text += f"\n         -> {self.remedy}"
        return "".join([text, *(f"\n            {line}" for line in self.examples)])


Digests: TypeAlias = "array[int]"
"""One integer for each row; numpy reads it in place."""

Pairs = npt.NDArray[np.int64]
"""Numbers of matching rows, from 0, `[pairs, 2]`: the earlier one or that of training, and the other."""

NO_LABEL = 0
"""The digest of a row without a label."""

_BETWEEN = re.compile(r"[\W_]+")


def normalised(text: str) -> str:
    """Normalize a text so that near copies are equal: NFKC, one case, only words."""
    if not text.isascii():
        text = unicodedata.normalize("NFKC", text)
    return _BETWEEN.sub(" ", text.casefold()).strip()


class RowDigests:
    """Digests of the rows of one file, 20 bytes per row.

    With 64 bits, the chance of any collision among a hundred million rows is 1 in 3,000. The 32 bits of
    labels are only compared between rows with the same text.

    Attributes:
        exact: digests of the unchanged texts, 64 bits each.
        normalised: digests of the normalized texts, 64 bits each.
        labels: digests of the labels, 32 bits each.
    """

    def __init__(self) -> None:
        # An `array` grows in place, by an eighth at a time; lists of integers need eight times the memory.
        self.exact: Digests = array("Q")
        self.normalised: Digests = array("Q")
        self.labels: Digests = array("I")

    def add(self, texts: Sequence[str], label: Any = None) -> None:
        """Add the next row.

        Args:
            texts: its texts, in order.
            label: its label, of any type; None if it has none.
        """
        self.exact.append(_digest("\x1f".join(texts)))
        self.normalised.append(_digest("\x1f".join(map(normalised, texts))))
        self.labels.append(NO_LABEL if label is None else zlib.crc32(repr(label).encode()) | 1)


def _digest(text: str) -> int:
    content = text.encode("utf-8", "surrogatepass")
    return int.from_bytes(hashlib.blake2b(content, digest_size=8).digest(), "little")


def shared(train: Digests, other: Digests) -> Pairs:
    """Find rows of `other` that are also in `train`, each with the first such row of `train`."""
    numbers = np.asarray(train)
    order = np.argsort(numbers, kind="stable")
    wanted = np.asarray(other)
    places = np.minimum(np.searchsorted(numbers[order], wanted), max(len(order) - 1, 0))
    first = order[places] if len(order) else np.full(len(wanted), -1)
    is_found = (first >= 0) & (numbers[first] == wanted) if len(order) else np.zeros(len(wanted), bool)
    pairs: Pairs = np.stack([first, np.arange(len(wanted))], axis=1)[is_found]
    return pairs


def repeated(digests: Digests) -> Pairs:
    """Find rows that repeat an earlier one, each with the first of them."""
    pairs = shared(digests, digests)
    found: Pairs = pairs[pairs[:, 0] != pairs[:, 1]]
    return found


def contradicting(pairs: Pairs, first: Digests, second: Digests) -> Pairs:
    """Return the pairs of rows that both have a label, and not the same; given the labels of each file."""
    ours = np.asarray(first)[pairs[:, 0]]
    theirs = np.asarray(second)[pairs[:, 1]]
    found: Pairs = pairs[(ours != theirs) & (ours != NO_LABEL) & (theirs != NO_LABEL)]
    return found


MOST_EXAMPLES = 3
"""Maximum number of rows that a finding shows."""

MANY = 0.01
"""Fraction of repeated or truncated rows from which a finding is a warning, and of unknown tokens from which
there is a note; `TextFacts` warns from a tenth."""

DOMINANT = 0.5
RARE = 20
"""A label is dominant if half of the rows have it, and 20 times as many as have the rarest."""

OUTSIDE = "O"
"""The label of words outside of all entities, which always dominates."""

Files: TypeAlias = Mapping[Role, Path | None]
"""The files of a task."""


class FileCheck:
    """One pass over a file; call `run` once.

    Args:
        reader: the task's reader; it collects `facts` and `bad` during the pass.
        path: the file.
        role: its role in the run.

    Attributes:
        table: the file whose rows are read.
        name: of the file in messages, with the part of chosen rows.
        digests: digests of its examples.
        bad: its unusable rows.
        facts: unknown tokens and truncation.
        counts: statistics of labels and lengths.
        repeated: number of examples that repeat an earlier one, but for case and punctuation.
        scheme: the scheme of its tags, if they are tags of words.
        first_row: the first row as the model sees it.
    """

    def __init__(self, reader: Reader, path: Path, role: Role) -> None:
        self.reader = reader
        self.path = path
        self.role = role
        self.table = table_of(path)
        self.name = shown_name(path)
        self.digests = RowDigests()
        self.facts = TextFacts()
        self.bad = BadRows(path, "skip" if role == "pred" else reader.on_bad_row)
        self.counts = FileStatistics(reader)
        self.repeated = 0
        self.scheme = ""
        self.first_row = ""
        self._tokenizer = tokenizer_of(reader)
        self._normalizer = self._tokenizer and self._tokenizer.to_library().normalizer

    def run(self) -> None:
        """Read the file; unusable rows are collected in `bad`.

        Raises:
            DataError: it does not have the reader's format.
        """
        found = examples_of(self.reader, self.path, self.role)
        examples = tqdm(found, f"reading {self.name}", leave=False, disable=None, unit=" rows")
        self.reader.facts = self.facts
        self.reader.bad_rows = self.bad
        try:
            for chunk, rows in encoded_chunks(self.reader, examples, with_targets=self.role == "train"):
                truths = list(gold_of(self.reader, chunk, self.role))
                for example, truth in zip(chunk, truths, strict=True):
                    texts = [self._normalized(text) for text in texts_of(example)]
                    self.digests.add(texts, tuple(map(str, truth.values())) or None)
                self.counts.add(rows, truths)
                self._show_first(chunk, rows, truths)
        finally:
            self.reader.facts = self.reader.bad_rows = None

    def _normalized(self, text: str) -> str:
        """Return the text as the model sees it: uniform spaces; no case and accents if it lower-cases."""
        return " ".join((self._normalizer.normalize_str(text) if self._normalizer else text).split())

    def _show_first(self, chunk: Sequence[Any], rows: Rows, truths: Sequence[Mapping[str, Any]]) -> None:
        if self.first_row or self._tokenizer is None or not len(rows):
            return
        number = int(rows["example"][0])
        targets = {}
        for name, value in truths[number].items():
            value = self.counts.names.get(value, value) if name == "label" else value
            words = " ".join(map(str, value)) if isinstance(value, (list, tuple)) else str(value)
            targets[name] = cut(words, MOST_LETTERS)
        text = readable_row(self._tokenizer, rows["token_ids"][0], targets)
        self.first_row = f"{place_of(chunk[number])} {text}"

    def examples_at(self, numbers: Iterable[int]) -> dict[int, Any]:
        """Return the examples with these numbers, from 0; reads the file again up to the last of them."""
        wanted = {*numbers}
        self.reader.bad_rows = BadRows(self.path)  # already reported
        try:
            examples = examples_of(self.reader, self.path, self.role)
            until = islice(enumerate(examples), max(wanted, default=-1) + 1)
            return {number: example for number, example in until if number in wanted}
        finally:
            self.reader.bad_rows = None


def data_of(name: str, reader: Reader, files: Files) -> TaskData:
    """Read all files of a task once, and compare them; those that do not exist are reported elsewhere."""
    task = TaskData(name)
    for role, path in files.items():
        if path is not None and is_data(path):
            task.read(reader, path, role)
    if task.files and task.files[0].role == "train":
        for other in task.files[1:]:
            task.compare(task.files[0], other)
    return task


@dataclass
class TaskData:
    """The contents of a task's files, and their problems.

    Args:
        task: the task's name.
        files: the files that could be read, the training file first.
        leaks: role of another file -> its examples that are also in the training file, but for case and
            punctuation.
        problems: all findings.
    """

    task: str
    files: list[FileCheck] = field(default_factory=list)
    leaks: dict[Role, int] = field(default_factory=dict)
    problems: list[Problem] = field(default_factory=list)

    def add(
        self, severity: Severity, code: str, message: str, remedy: str = "", examples: Iterable[str] = ()
    ) -> None:
        """Add a finding."""
        self.problems.append(Problem(severity, code, self.task, message, remedy, tuple(examples)))

    def read(self, reader: Reader, path: Path, role: Role) -> None:
        """Read a file, and add the problems in it."""
        train = next((file.path for file in self.files if file.role == "train"), None)
        if train is not None and files_of(path) == files_of(train):
            remedy = "give a dev_file with other rows" if role == "dev" else ""
            finding = f"the {role}_file is the training file, {path}"
            self.add("warning" if remedy else "note", "same_file", finding, remedy)
            return
        file = FileCheck(reader, path, role)
        try:
            file.run()
        except PalmError as error:
            self.add("error", "data", str(error), "correct the file; it was not checked further")
            return
        self.files.append(file)
        self._check_bad_rows(file)
        self._check_repeats(file)
        self._check_texts(file)
        self._check_labels(file)

    def _check_repeats(self, file: FileCheck) -> None:
        digests = file.digests
        same = repeated(digests.normalised)
        clash = contradicting(repeated(digests.exact), digests.labels, digests.labels)
        file.repeated = len(same)
        total = file.counts.examples
        if len(same):
            finding = f"{file.name}: {part_of(len(same), total)} rows repeat an earlier one{BUT_FOR_CASE}"
            remedy = "remove them, or they count twice"
            remedy += " in every score" if file.role != "train" else ""
            severity: Severity = "warning" if len(same) >= MANY * total else "note"
            self.add(severity, "duplicates", finding, remedy, _lines_of(same, file, file))
        if len(clash):
            part = part_of(len(clash), total)
            finding = f"{file.name}: {part} rows have the text of an earlier row and a different label"
            remedy = "decide which label is right; the model can only learn one of them"
            self.add("warning", "contradictions", finding, remedy, _lines_of(clash, file, file))

    def _check_bad_rows(self, file: FileCheck) -> None:
        """Add what training or prediction says of them."""
        examples = file.bad.problems[:MOST_EXAMPLES]
        try:
            file.bad.finish(lambda finding: self.add("warning", "bad_rows", finding, examples=examples))
        except DataError as error:
            *lines, finding = str(error).splitlines()
            self.add("error", "data", finding, "correct the file, or the settings of the reader", lines)

    def _check_texts(self, file: FileCheck) -> None:
        facts = file.facts
        name = file.name
        codes = set()
        for code, message, remedy in facts.remarks(file.reader.vocab_path):
            few = code == "truncation" and all(count < MANY * total for count, total, _ in facts.cut.values())
            codes.add(code)
            self.add("note" if few else "warning", code, f"{name}: {message}", remedy)
        if not codes & {"case", "unknown"} and facts.unknown > MANY * facts.tokens:
            finding = f"{name}: {part_of(facts.unknown, facts.tokens)} tokens are [UNK]"
            self.add("note", "unknown", finding, "check whether the task needs these words")

    def _check_labels(self, file: FileCheck) -> None:
        counts = file.counts.labels
        name = file.name
        if file.role == "dev" and len(counts) == 1 and OUTSIDE not in counts:
            finding = f"{name}: all {sum(counts.values())} rows have the label {next(iter(counts))!r}"
            self.add("warning", "one_label", finding, "add rows with other labels, or scores say little")
        if file.role != "train" or not counts:
            return
        if isinstance(file.reader, SequenceLabelReader):
            try:
                file.scheme = scheme_of(counts)
            except ConfigError as error:
                self.add("error", "data", f"{name}: {error}")
        if once := sorted(label for label, count in counts.items() if count == 1):
            finding = f"{name}: {_several(once)} seen once in {sum(counts.values())}"
            self.add("warning", "rare_label", finding, "add rows with such a label, or merge it with another")
        self._check_missing_labels(file)
        self._check_balance(name, counts)

    def _check_missing_labels(self, file: FileCheck) -> None:
        classes = file.reader.settings.get("n_classes")
        named = [*file.counts.names.values()] or map(str, range(classes or 0))
        if missing := [label for label in named if label not in file.counts.labels]:
            finding = f"{file.name}: {_several(missing)} in no row"
            remedy = "the model never learns such a label: add rows, or remove it from label_map or n_classes"
            self.add("warning", "missing_label", finding, remedy)

    def _check_balance(self, name: str, counts: Mapping[str, int]) -> None:
        kinds = {label: count for label, count in counts.items() if label != OUTSIDE or len(counts) == 1}
        common, most = max(kinds.items(), key=lambda item: item[1])
        total = sum(kinds.values())
        least = min(kinds.values())
        if len(kinds) > 1 and most >= max(DOMINANT * total, RARE * least):
            finding = f"{name}: {common!r} is the label of {part_of(most, total)}, the rarest has {least}"
            remedy = "a model that always predicts it has that accuracy: look at macro_f1 too"
            self.add("note", "imbalance", finding, remedy)

    def compare(self, train: FileCheck, other: FileCheck) -> None:
        """Add the problems between the training file and another one."""
        seen = shared(train.digests.normalised, other.digests.normalised)
        self.leaks[other.role] = len(seen)
        if len(seen):
            part = part_of(len(seen), other.counts.examples)
            finding = f"{other.table.name} ({other.role}): {part} rows are also in {train.name}{BUT_FOR_CASE}"
            if count := len(contradicting(seen, train.digests.labels, other.digests.labels)):
                finding += f"; {count} of them with a different label"
            reason = ", or scores are too high" if other.role == "dev" else " if predictions will be scored"
            remedy = f"remove them from the training file{reason}"
            self.add("warning", "leak", finding, remedy, _lines_of(seen, train, other))
        unseen = [label for label in other.counts.labels if label not in train.counts.labels]
        if other.role == "dev" and train.counts.labels and unseen:
            finding = f"{other.name}: {_several(unseen)} in no training row"
            remedy = "predictions for such rows are always wrong: add training rows, or remove them"
            self.add("warning", "unseen_label", finding, remedy)


BUT_FOR_CASE = ", apart from case and punctuation"


def _lines_of(pairs: Pairs, first: FileCheck, second: FileCheck) -> list[str]:
    """Return a line for each of the first pairs of rows."""
    some = pairs[:MOST_EXAMPLES].tolist()
    firsts = first.examples_at(number for number, _ in some)
    seconds = second.examples_at(number for _, number in some)
    return [f"{shown(seconds[b])}  (as {place_of(firsts[a])})" for a, b in some]


def _several(labels: Sequence[str]) -> str:
    """Return `the label 'a' is` or `3 labels ('a', …) are`."""
    if len(labels) == 1:
        return f"the label {labels[0]!r} is"
    return f"{len(labels)} labels ({', '.join(shortened([*map(repr, labels)], 5))}) are"
