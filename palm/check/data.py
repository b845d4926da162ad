"""The data of one task: its files, and problems within and between them."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeAlias

from palm.check.digests import Matches, contradictory, relabelled, repeated, shared
from palm.check.files import FileCheck, FileReading
from palm.check.result import Problem, Severity
from palm.core.errors import PalmError, shortened
from palm.reader import Reader
from palm.reader.inspection import Role, place_of, shown
from palm.reader.tables.files import files_of, is_data

MOST_EXAMPLES = 3
"""Maximum number of rows that a finding shows."""

MANY = 0.01
"""Fraction of repeated or truncated rows from which a finding is a warning."""

ODD_UNKNOWN = 0.01
"""Fraction of unknown tokens from which there is a note; from a tenth, a warning (see `TextFacts`)."""

DOMINANT = 0.5
RARE = 20
"""A label is dominant if half of the rows have it, and 20 times as many as have the rarest."""

OUTSIDE = "O"
"""The label of words outside of all entities, which always dominates."""


Files: TypeAlias = Mapping[Role, Path | None]
"""The files of a task."""


@dataclass(frozen=True)
class Leak:
    """Examples of another file that are also in the training file.

    Args:
        role: the role of the other file.
        exact: examples with texts that are the same for the model.
        normalised: examples with the same texts apart from letter case, punctuation and spaces.
    """

    role: Role
    exact: int
    normalised: int


def data_of(name: str, reader: Reader | PalmError, files: Files) -> TaskData:
    """Read all files of a task once, and compare them.

    Args:
        name: the task's name.
        reader: its reader, or the error that there was instead.
        files: its files; those that do not exist are reported elsewhere.
    """
    task = TaskData(name)
    if isinstance(reader, PalmError):
        task.add("error", "reader", str(reader))
        return task
    readings: dict[Role, FileReading] = {}
    for role, path in files.items():
        if path is not None and is_data(path):
            task.read(reader, path, role, readings)
    if "train" in readings:
        task.compare(readings.pop("train"), readings)
    return task


@dataclass
class TaskData:
    """The contents of a task's files, and their problems.

    Args:
        task: the task's name.
        files: the files that could be read.
        leaks: one entry for each file other than the training file.
        missing_labels: labels of the label_map that no training row has.
        unseen_labels: labels in the dev file that no training row has.
        problems: all findings.
    """

    task: str
    files: list[FileCheck] = field(default_factory=list)
    leaks: list[Leak] = field(default_factory=list)
    missing_labels: list[str] = field(default_factory=list)
    unseen_labels: list[str] = field(default_factory=list)
    problems: list[Problem] = field(default_factory=list)

    def add(
        self, severity: Severity, code: str, message: str, remedy: str = "", examples: Iterable[str] = ()
    ) -> None:
        """Add a finding."""
        self.problems.append(Problem(severity, code, self.task, message, remedy, tuple(examples)))

    def read(self, reader: Reader, path: Path, role: Role, readings: dict[Role, FileReading]) -> None:
        """Read a file into `readings`, and add the problems in it."""
        train = readings.get("train")
        if train is not None and files_of(path) == files_of(train.path):
            finding = f"the {role}_file is the training file, {path}"
            if role == "dev":
                self.add("warning", "same_file", finding, "give a dev_file with other rows")
            else:
                self.add("note", "same_file", finding)
            return
        reading = FileReading(reader, path, role)
        try:
            reading.run()
        except PalmError as error:
            self.add("error", "data", str(error), "correct the file; it was not checked further")
            return
        self._check_bad_rows(reading)
        readings[role] = reading
        self._check_repeats(reading)
        self._check_texts(reading)
        self._check_labels(reading)

    def _check_repeats(self, reading: FileReading) -> None:
        digests = reading.digests
        same = repeated(digests.exact, MOST_EXAMPLES)
        nearly = repeated(digests.normalised, 0)
        clash = contradictory(digests, MOST_EXAMPLES)
        self.files.append(reading.check(same.count, clash.count))
        pairs = reading.examples_at({number for pair in (*same.pairs, *clash.pairs) for number in pair})
        name = reading.path.name
        total = max(1, len(digests))
        if same.count:
            finding = f"{name}: {_part(same.count, total)} rows repeat an earlier one{_more(same, nearly)}"
            remedy = "remove them, or they count twice"
            remedy += " in every score" if reading.role != "train" else ""
            severity: Severity = "warning" if same.count >= MANY * total else "note"
            self.add(severity, "duplicates", finding, remedy, _lines_of(same, pairs, pairs))
        if clash.count:
            part = _part(clash.count, total)
            finding = f"{name}: {part} rows have the same text as another row and a different label"
            remedy = "decide which label is right; the model can only learn one of them"
            self.add("warning", "contradictions", finding, remedy, _lines_of(clash, pairs, pairs))

    def _check_bad_rows(self, reading: FileReading) -> None:
        bad = reading.bad
        name = reading.path.name
        lines = [
            f"{name}:{each['line']}: {each['problem']}" if each["line"] else each["problem"]
            for each in bad.records[: 2 * MOST_EXAMPLES]
        ]
        if bad.is_refused:
            remedy = "correct them, or set on_bad_row: skip" if reading.role != "pred" else "correct them"
            self.add("error", "data", f"{name}: unusable rows: {bad.count}", remedy, lines)
        elif bad.count:
            done = f"{bad.count - bad.repaired} are left out and {bad.repaired} repaired"
            finding = f"{name}: {bad.count} unusable rows"
            self.add("warning", "bad_rows", finding, done, lines)

    def _check_texts(self, reading: FileReading) -> None:
        facts = reading.facts
        name = reading.path.name
        codes = set()
        for code, message, remedy in facts.remarks(reading.reader.vocab_path):
            few = code == "truncation" and all(count < MANY * total for count, total, _ in facts.cut.values())
            codes.add(code)
            self.add("note" if few else "warning", code, f"{name}: {message}", remedy)
        if not codes & {"case", "unknown"} and facts.unknown > ODD_UNKNOWN * facts.tokens:
            words = ", ".join(repr(word) for word, _ in reading.unknown_words.most_common(5))
            finding = f"{name}: {_part(facts.unknown, facts.tokens)} tokens are [UNK]; most often {words}"
            self.add("note", "unknown", finding, "check whether the task needs these words")

    def _check_labels(self, reading: FileReading) -> None:
        counts = reading.counts.labels
        name = reading.path.name
        if reading.role == "dev" and len(counts) == 1 and OUTSIDE not in counts:
            finding = f"{name}: all {sum(counts.values())} rows have the label {next(iter(counts))!r}"
            self.add("warning", "one_label", finding, "add rows with other labels, or scores say little")
        if reading.role != "train" or not counts:
            return
        if once := sorted(label for label, count in counts.items() if count == 1):
            finding = f"{name}: {_several(once)} seen once in {sum(counts.values())}"
            self.add("warning", "rare_label", finding, "add rows with such a label, or merge it with another")
        classes = reading.reader.settings.get("n_classes")
        named = [*reading.counts.names.values()] or map(str, range(classes or 0))
        self.missing_labels = [label for label in named if label not in counts]
        if self.missing_labels:
            finding = f"{name}: {_several(self.missing_labels)} in no row"
            remedy = "the model never learns such a label: add rows, or remove it from label_map or n_classes"
            self.add("warning", "missing_label", finding, remedy)
        self._check_balance(name, counts)

    def _check_balance(self, name: str, counts: Mapping[str, int]) -> None:
        kinds = {label: count for label, count in counts.items() if label != OUTSIDE or len(counts) == 1}
        common, most = max(kinds.items(), key=lambda item: item[1])
        total = sum(kinds.values())
        least = min(kinds.values())
        if len(kinds) > 1 and most >= max(DOMINANT * total, RARE * least):
            finding = f"{name}: {common!r} is the label of {_part(most, total)}, the rarest has {least}"
            remedy = "a model that always predicts it has that accuracy: look at macro_f1 too"
            self.add("note", "imbalance", finding, remedy)

    def compare(self, train: FileReading, others: Mapping[Role, FileReading]) -> None:
        """Add the problems between the training file and the others."""
        for role, other in others.items():
            self._check_leaks(train, other)
            unseen = [label for label in other.counts.labels if label not in train.counts.labels]
            if role == "dev" and train.counts.labels and unseen:
                self.unseen_labels = unseen
                finding = f"{other.path.name}: {_several(unseen)} in no training row"
                remedy = "predictions for such rows are always wrong: add training rows, or remove them"
                self.add("warning", "unseen_label", finding, remedy)

    def _check_leaks(self, train: FileReading, other: FileReading) -> None:
        exact = shared(train.digests.exact, other.digests.exact, MOST_EXAMPLES)
        nearly = shared(train.digests.normalised, other.digests.normalised, MOST_EXAMPLES)
        self.leaks.append(Leak(other.role, exact.count, nearly.count))
        seen = exact if exact.count else nearly
        if seen.count:
            firsts = train.examples_at({number for number, _ in seen.pairs})
            seconds = other.examples_at({number for _, number in seen.pairs})
            part = _part(seen.count, len(other.digests))
            finding = f"{other.path.name} ({other.role}): {part} rows are also in {train.path.name}"
            finding += _more(exact, nearly) if exact.count else BUT_FOR_CASE
            if train.counts.labels and (count := relabelled(train.digests, other.digests)):
                finding += f"; {count} of them with a different label"
            reason = ", or scores are too high" if other.role == "dev" else " if predictions will be scored"
            remedy = f"remove them from the training file{reason}"
            self.add("warning", "leak", finding, remedy, _lines_of(seen, firsts, seconds))


BUT_FOR_CASE = " apart from case and punctuation"


def _lines_of(found: Matches, firsts: Mapping[int, Any], seconds: Mapping[int, Any]) -> Iterator[str]:
    """Yield a line for each pair to show."""
    for first, second in found.pairs:
        yield f"{shown(seconds[second])}  (as {place_of(firsts[first])})"


def _more(exact: Matches, nearly: Matches) -> str:
    """Describe how many more rows match apart from letter case, punctuation and spaces."""
    return f", {nearly.count - exact.count} more{BUT_FOR_CASE}" if nearly.count > exact.count else ""


def _several(labels: Sequence[str]) -> str:
    """Return `the label 'a' is` or `3 labels ('a', …) are`."""
    if len(labels) == 1:
        return f"the label {labels[0]!r} is"
    return f"{len(labels)} labels ({', '.join(shortened([*map(repr, labels)], 5))}) are"


def _part(count: int, total: int) -> str:
    return f"{count} of {total} ({100 * count / max(1, total):.1f} %)"
