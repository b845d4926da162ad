"""Readers of labelled spans of words or characters, and of relations between them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import KW_ONLY, dataclass, replace
from itertools import accumulate, pairwise, starmap
from typing import Any, ClassVar, Literal, NamedTuple

import numpy as np
import torch

from palm.config import FilePath
from palm.core.errors import DataError
from palm.core.saved import NO_LABEL, Tensors, TensorSpec
from palm.reader.base import READERS, Draw
from palm.reader.labels import Labels, check_labelled, list_in
from palm.reader.predictions import Record
from palm.reader.rows import SEQUENCE_ATTR, Rows, padded
from palm.reader.tables.columns import TableRow
from palm.reader.words import CHARACTER, WORD, WordReader, words_of


class Span(NamedTuple):
    """Consecutive words.

    Args:
        start: index of the first word.
        end: index of the first word after the span.
        label: id of the span's label.
    """

    start: int
    end: int
    label: int


class Relation(NamedTuple):
    """A labelled pair of spans; `head` and `tail` are indices into the list of spans."""

    head: int
    tail: int
    label: int


@dataclass(frozen=True, slots=True)
class SpanExample:
    """One row of a table.

    Args:
        words: the text's words.
        place: `file:line`, for messages.
        text: the text if spans count characters; None if they count words.
        offsets: start and end of every word, in characters or words.
        spans: in the file's order; None if unknown or not read.
        relations: between these spans; None if unknown or not read.
    """

    words: list[str]
    place: str
    text: str | None
    offsets: Sequence[tuple[int, int]]
    spans: list[Span] | None = None
    relations: list[Relation] | None = None

    def covered(self, start: int, end: int) -> str:
        """The text of some words or characters."""
        return " ".join(self.words[start:end]) if self.text is None else self.text[start:end]

    def span(self, value: Any, number: int, labels: Labels) -> Span:
        """Convert a span of the file, in words or characters, to a span of words.

        Raises:
            DataError: not a span, or it does not start and end at words of the text.
        """
        place = f"{self.place}: span {number}"
        if not isinstance(value, Mapping) or not {"start", "end", "label"} <= value.keys():
            raise DataError(f"{place}: expected an object with start, end and label, not {value!r}")
        start = value["start"]
        end = value["end"]
        are_numbers = type(start) is type(end) is int
        if are_numbers:
            self._check_text(value.get("text"), start, end, place)
        unit, size = ("words", len(self.words)) if self.text is None else ("characters", len(self.text))
        if not (are_numbers and 0 <= start < end <= size):
            raise DataError(
                f"{place}: start {start!r} and end {end!r} should be a span within {size} {unit}; both count "
                f"from 0, and end is the first of the {unit} after the span"
            )
        label = labels.value_of(value["label"], place)
        starts = [first for first, _ in self.offsets]
        ends = [last for _, last in self.offsets]
        if start not in starts or end not in ends:
            raise DataError(
                f"{place}: characters {start} to {end} ({self.covered(start, end)!r}) start or end inside a "
                "word or at a space; align them with words, or set unit: character if words are written "
                "without spaces, or span_unit: word if start and end count words"
            )
        return Span(starts.index(start), ends.index(end) + 1, label)

    def _check_text(self, own: Any, start: int, end: int, place: str) -> None:
        """Compare a span with the text that it has itself, if it has one."""
        covered = self.covered(start, end)
        if not isinstance(own, str) or "".join(covered.split()) == "".join(own.split()):
            return
        units: Sequence[str] = self.words if self.text is None else self.text
        size = len(own.split() if self.text is None else own)
        elsewhere = (k for k in range(len(units) - size + 1) if self.covered(k, k + size) == own)
        found = next(elsewhere, None)
        hint = "which text_a does not contain" if found is None else f"at {found}; correct the offsets"
        raise DataError(f"{place}: {start} to {end} is {covered!r}, but its text is {own!r}, {hint}")

    def record(self, start: int, end: int, label: str) -> Record:
        """A span of words in the unit and form of the file, with its text."""
        start = self.offsets[start][0]
        end = self.offsets[end - 1][1]
        return {"start": start, "end": end, "label": label, "text": self.covered(start, end)}


@READERS.register("span")
@dataclass(eq=False, repr=False)
class SpanReader(WordReader):
    """Reader of tables with the columns `text_a` and `spans`.

    `spans` is a list of `{"start": 2, "end": 4, "label": "to"}`, where `end` is the first word or character
    after the span. Spans may be nested, but no two may cover the same words. Spans count words if the text is
    a list, and characters if it is a string; these must start and end at words, which are runs of letters and
    digits, or any other single character, such as a Chinese one. With `span_unit: word`, the words of a
    string are separated by spaces. Rows are those of `seq_label`; a span that does not fit into one row is
    not trained on. A record is `{"index": 0, "spans": [{"start", "end", "label", "text", "prob"}, ...]}`, in
    the unit of the file.

    Args:
        label_map: label name -> id, or a JSON file with it.
        n_classes: number of labels, against which the `label_map` is checked.
        span_unit: what start and end count: word or char; by default, words of a list and characters of a
            string.
        unit: what the words of a string are: word, or character for single characters, for texts that are
            written without spaces, such as Thai, or whose words have endings outside a span, as in Korean.
        missing_labels: whether the spans of a training row may be null; the row is then used only for tasks
            that share it.

    Raises:
        ConfigError: a setting out of its range, or a label_map that does not fit `n_classes`.
        DataError: the vocabulary or label_map cannot be read.
    """

    cacheable = True
    known_columns: ClassVar[tuple[str, ...]] = ("spans", "text_a")

    label_map: FilePath | dict[str, int]
    _: KW_ONLY
    n_classes: int | None = None
    span_unit: Literal["word", "char"] | None = None
    unit: Literal["word", "character"] = "word"
    missing_labels: bool = False

    def __post_init__(self) -> None:
        super().__post_init__()
        self.labels = Labels(self.n_classes, self.label_map)
        self.span_labels = self.labels
        self.outputs_attr = {**SEQUENCE_ATTR, "word_starts": TensorSpec(("batch", "words"), torch.long)}
        self.targets_attr = {"span_labels": TensorSpec(("batch", "words", "words"), torch.long)}
        self.gold_names = ("spans",)

    def example_of(self, row: TableRow, with_targets: bool) -> SpanExample | None:
        text = row.cells["text_a"]
        counts_characters = isinstance(text, str) and self.span_unit != "word"
        if counts_characters:
            pattern = WORD if self.unit == "word" else CHARACTER
            words = words_of(pattern.findall(text), row.place)
            example = SpanExample(words, row.place, text, [each.span() for each in pattern.finditer(text)])
        else:
            words = words_of(text, row.place)
            example = SpanExample(words, row.place, None, list(pairwise(range(len(words) + 1))))
            if self.span_unit == "char" or self.unit == "character":
                raise DataError(f"{row.place}: with span_unit: char, text_a should be a string, not {text!r}")
        if not with_targets:
            return example
        if (cell := row.cells.get("spans")) in (None, ""):
            return example if self.missing_labels else None
        return replace(example, spans=self._spans(list_in(cell, row.place, "spans", "objects"), example))

    def is_labelled(self, example: SpanExample) -> bool:
        return example.spans is not None

    def _spans(self, values: Sequence[Any], example: SpanExample) -> list[Span]:
        spans = [example.span(value, number, self.span_labels) for number, value in enumerate(values)]
        places = [span[:2] for span in spans]
        for number, place in enumerate(places):
            if (first := places.index(place)) < number:
                raise DataError(
                    f"{example.place}: span {number} covers the words of span {first}; remove one"
                )
        return spans

    def own_fields(self, example: SpanExample, window: range, with_targets: bool) -> dict[str, Sequence[int]]:
        if not with_targets:
            return {}
        if example.spans is None:
            return {"spans": [-1, -1, NO_LABEL]}
        held = [example.spans[number] for number in held_spans(example, window)]
        return {"spans": [n for s in held for n in (s.start - window.start, s.end - window.start, s.label)]}

    def encode(self, examples: Sequence[SpanExample], with_targets: bool) -> Rows:
        rows = super().encode(examples, with_targets)
        for name in ("spans", "relations"):
            if self.facts is not None and name in rows:
                total = sum(len(getattr(example, name) or ()) for example in examples)
                kept = int((rows[name].values[::3] >= 0).sum())
                self.facts.add_cut(name, total - kept, total, f"max_seq_len (now {self.max_seq_len})")
        return rows

    def collate(self, rows: Rows, indices: Sequence[int], draw: Draw) -> Tensors:
        batch = super().collate(rows, indices, draw)
        starts = [rows["word_starts"][index] for index in indices]
        batch["word_starts"] = padded(starts, 0).long()
        width = batch["word_starts"].shape[1]
        if "span_labels" in self.targets_attr and "spans" in rows:
            labels = np.full((len(indices), width, width), NO_LABEL, dtype=np.int64)
            upper = np.triu(np.ones((width, width), dtype=bool))
            for row, own, index in zip(labels, starts, indices, strict=True):
                spans = rows["spans"][index].reshape(-1, 3)
                if (spans >= 0).all():
                    row[: len(own), : len(own)][upper[: len(own), : len(own)]] = 0
                    row[spans[:, 0], spans[:, 1] - 1] = spans[:, 2] + 1
            batch["span_labels"] = torch.from_numpy(labels)
        return batch

    def record(self, example: SpanExample, rows: Rows, places: range, decoded: Sequence[Record]) -> Record:
        spans = []
        for window, value in zip(windows_in(rows, places), decoded, strict=True):
            for start, end, label, prob in value["spans"]:
                span = example.record(start + window.start, end + window.start, self._name(label))
                spans.append(span | {"prob": prob})
        return {"spans": spans}

    def gold(self, example: SpanExample) -> Record:
        check_labelled(NO_LABEL if example.spans is None else 0, example.place)
        return {"spans": self.listed(example)}

    def listed(self, example: SpanExample) -> list[Record]:
        """The true spans of an example, in the unit and form of its file."""
        spans = example.spans or ()
        return [example.record(span.start, span.end, self._name(span.label)) for span in spans]

    def _name(self, label: int) -> str:
        return self.span_labels.names.get(label, str(label))


def held_spans(example: SpanExample, window: range) -> list[int]:
    """The indices of the spans that lie inside a window of words."""
    return [
        number
        for number, span in enumerate(example.spans or ())
        if window.start <= span.start and span.end <= window.stop
    ]


def windows_in(rows: Rows, places: range) -> list[range]:
    """The range of words in each row of an example."""
    ends = accumulate((len(rows["word_starts"][place]) for place in places), initial=0)
    return list(starmap(range, pairwise(ends)))


@READERS.register("relation")
@dataclass(eq=False, repr=False, kw_only=True)
class RelationReader(SpanReader):
    """Reader of tables with the columns `text_a`, `spans` and `relations`.

    A relation is `{"head": 0, "tail": 2, "label": "lives_in"}`; head and tail are indices into the list of
    spans, and a pair may have several relations. Texts and spans are those of `span`; a relation whose spans
    are not in one row is not trained on. A record is that of `span`, with `relations` between its spans:
    `[{"head", "tail", "label", "prob"}, ...]`.

    Args:
        label_map: relation label -> id, or a JSON file with it.
        n_classes: number of relation labels, against which the `label_map` is checked.
        missing_labels: whether the relations of a training row may be null; the row is then used only for
            tasks that share it.
        span_label_map: span label -> id, or a JSON file with it.
        n_span_classes: number of span labels, against which the `span_label_map` is checked.
        spans: the spans used in prediction and evaluation: predicted by the model, or given in the file.

    Raises:
        ConfigError: a setting out of its range, or a label_map that does not fit `n_classes`.
        DataError: the vocabulary or a label_map cannot be read.
    """

    cacheable = True
    known_columns = ("relations", "spans", "text_a")

    span_label_map: FilePath | dict[str, int]
    n_span_classes: int | None = None
    spans: Literal["given", "predicted"] = "predicted"

    def __post_init__(self) -> None:
        super().__post_init__()
        self.span_labels = Labels(self.n_span_classes, self.span_label_map)
        self.spans_given = self.spans == "given"
        self.num_labels = self.labels.count
        self.gold_names = ("relations", "spans")
        self._declare()

    def _declare(self) -> None:
        """Declare the tensors of a batch: the places of spans are read from the file, or are targets."""
        one_per_span = TensorSpec(("batch", "spans"), torch.long)
        places = {"span_starts": one_per_span, "span_ends": one_per_span}
        pairs = TensorSpec(("batch", "spans", "spans", self.num_labels), torch.long)
        if self.spans_given:
            self.input_columns = ("text_a", "spans")
            self.outputs_attr = {**self.outputs_attr, **places}
            self.targets_attr = {"relation_labels": pairs}
        else:
            self.targets_attr = {**self.targets_attr, **places, "relation_labels": pairs}

    def example_of(self, row: TableRow, with_targets: bool) -> SpanExample | None:
        example = super().example_of(row, with_targets or self.spans_given)
        if not with_targets:
            if example is None or (self.spans_given and example.spans is None):
                raise DataError(f"{row.place}: no spans; with `spans: given`, every row needs them")
            return example
        cell = row.cells.get("relations")
        if example is None or example.spans is None or cell in (None, ""):
            return example if self.missing_labels else None
        found = list_in(cell, row.place, "relations", "objects")
        return replace(example, relations=[self._relation(each, k, example) for k, each in enumerate(found)])

    def is_labelled(self, example: SpanExample) -> bool:
        return example.relations is not None

    def _relation(self, value: Any, number: int, example: SpanExample) -> Relation:
        place = f"{example.place}: relation {number}"
        if not isinstance(value, Mapping) or not {"head", "tail", "label"} <= value.keys():
            raise DataError(f"{place}: expected an object with head, tail and label, not {value!r}")
        ends = [value["head"], value["tail"]]
        count = len(example.spans or ())
        if any(type(end) is not int or not 0 <= end < count for end in ends) or ends[0] == ends[1]:
            raise DataError(
                f"{place}: head {ends[0]!r} and tail {ends[1]!r} should be indices of two different spans; "
                f"there are {count}, counted from 0"
            )
        return Relation(ends[0], ends[1], self.labels.value_of(value["label"], place))

    def own_fields(self, example: SpanExample, window: range, with_targets: bool) -> dict[str, Sequence[int]]:
        columns = super().own_fields(example, window, with_targets or self.spans_given)
        if with_targets:
            places = {number: place for place, number in enumerate(held_spans(example, window))}
            columns["relations"] = [-1] * 3 if example.relations is None else []
            for head, tail, label in example.relations or ():
                if head in places and tail in places:
                    columns["relations"] = [*columns["relations"], places[head], places[tail], label]
        return columns

    def collate(self, rows: Rows, indices: Sequence[int], draw: Draw) -> Tensors:
        batch = super().collate(rows, indices, draw)
        if "spans" not in rows:
            return batch
        spans = [rows["spans"][index].reshape(-1, 3) for index in indices]
        known = [own[own[:, 0] >= 0] for own in spans]
        batch["span_starts"] = padded([own[:, 0] for own in known], 0, least=1).long()
        batch["span_ends"] = padded([own[:, 1] for own in known], 0, least=1).long()
        if "relations" not in rows:
            return batch
        width = batch["span_starts"].shape[1]
        labels = np.full((len(indices), width, width, self.num_labels), NO_LABEL, dtype=np.int64)
        for row, own in enumerate(known):
            found = rows["relations"][indices[row]].reshape(-1, 3)
            if (found >= 0).all():
                labels[row, : len(own), : len(own)][~np.eye(len(own), dtype=bool)] = 0
                labels[row, found[:, 0], found[:, 1], found[:, 2]] = 1
        return {**batch, "relation_labels": torch.from_numpy(labels)}

    def record(self, example: SpanExample, rows: Rows, places: range, decoded: Sequence[Record]) -> Record:
        relations = []
        count = 0
        for window, value in zip(windows_in(rows, places), decoded, strict=True):
            predicted = range(count, count + len(value["spans"]))
            numbers = held_spans(example, window) if self.spans_given else predicted
            count = predicted.stop
            relations += [
                {**self._ends(numbers[head], numbers[tail], label), "prob": prob}
                for head, tail, label, prob in value["relations"]
            ]
        given = {"spans": self.listed(example)} if self.spans_given else {}
        return {**super().record(example, rows, places, decoded), **given, "relations": relations}

    def gold(self, example: SpanExample) -> Record:
        check_labelled(NO_LABEL if example.relations is None else 0, example.place)
        relations = [self._ends(head, tail, label) for head, tail, label in example.relations or ()]
        return {"relations": relations, "spans": self.listed(example)}

    def _ends(self, head: int, tail: int, label: int) -> Record:
        return {"head": head, "tail": tail, "label": self.labels.names.get(label, str(label))}
