"""The `span` reader: texts, and labelled spans of their words or characters, which may nest."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import accumulate, pairwise, starmap
from typing import Any, ClassVar, NamedTuple

import numpy as np
import torch

from palm.config import FilePath
from palm.core.checks import choice_problems, raise_any
from palm.core.errors import DataError
from palm.core.tensor_specs import NO_LABEL, Tensors, TensorSpec
from palm.reader.base import READERS, Draw
from palm.reader.predictions import Record
from palm.reader.rows.collate import SEQUENCE_ATTR, padded
from palm.reader.rows.rows import Rows
from palm.reader.tables.record import TableRow
from palm.reader.text.labels import Labels, check_labelled, list_in
from palm.reader.words import WordReader, words_of

_ALONE = "\u2e80-\u9fff\uf900-\ufaff\U00020000-\U0003ffff"  # Chinese and Japanese, without blanks

_WORD = re.compile(rf"(?!\s)[{_ALONE}]|[^\W{_ALONE}]+|\S")


class Span(NamedTuple):
    """Consecutive words.

    Args:
        first: the first of them.
        beyond: the first word after them.
        label: the id of their label.
    """

    first: int
    beyond: int
    label: int


class Relation(NamedTuple):
    """A labelled pair of spans, from `head` to `tail`, by their numbers in the list of spans."""

    head: int
    tail: int
    label: int


@dataclass(frozen=True, slots=True)
class SpanExample:
    """One row of a table.

    Args:
        words: the text's words.
        place: `file:line`, for messages.
        text: the text, where spans count its characters; otherwise None.
        offsets: there, the first character of every word and that after its last one.
        spans: in the file's order; None where they are not known or not read.
        relations: between these spans; None where they are not known or not read.
    """

    words: list[str]
    place: str
    text: str | None = None
    offsets: Sequence[tuple[int, int]] = ()
    spans: list[Span] | None = None
    relations: list[Relation] | None = None

    def span(self, value: Any, number: int, labels: Labels) -> Span:
        """The words of a span in a file, which counts words or characters.

        Raises:
            DataError: it is none, or no span of the words.
        """
        place = f"{self.place}: span {number}"
        if not isinstance(value, Mapping) or not {"start", "end", "label"} <= value.keys():
            raise DataError(f"{place}: expected an object with start, end and label, not {value!r}")
        start = value["start"]
        end = value["end"]
        unit, size = ("words", len(self.words)) if self.text is None else ("characters", len(self.text))
        is_inside = type(start) is type(end) is int and 0 <= start < end <= size
        if not is_inside:
            raise DataError(
                f"{place}: start {start!r} and end {end!r} are no span of {size} {unit}; they count from 0, "
                f"and end is the first of the {unit} after the span"
            )
        label = labels.value_of(value["label"], place)
        if self.text is None:
            return Span(start, end, label)
        starts = [first for first, _ in self.offsets]
        ends = [beyond for _, beyond in self.offsets]
        if start not in starts or end not in ends:
            raise DataError(
                f"{place}: the characters {start} to {end} ({self.text[start:end]!r}) begin or end within a "
                "word or at a blank; move them to the ends of words, or set span_unit: word if they are words"
            )
        return Span(starts.index(start), ends.index(end) + 1, label)

    def record(self, first: int, beyond: int, label: str) -> Record:
        """A span as files have it, and its text."""
        if self.text is None:
            return {"start": first, "end": beyond, "label": label, "text": " ".join(self.words[first:beyond])}
        start = self.offsets[first][0]
        end = self.offsets[beyond - 1][1]
        return {"start": start, "end": end, "label": label, "text": self.text[start:end]}


@READERS.register("span")
class SpanReader(WordReader):
    """Reads tables with the columns `text_a` and `spans`, a list of `{"start": 2, "end": 4, "label": "to"}`.

    `end` is the first word, or character, after the span. Spans may nest; no two have the same words. Of a
    text that is a list, spans count words; of a string characters, and they begin and end with a word:
    letters and digits in a row, or one other character, as any of Chinese. With `span_unit: word` blanks
    separate the words of a string. Rows are those of `seq_label`; a span that does not lie in one row is not
    trained. A record is `{"index": 0, "spans": [{"start", "end", "label", "text", "prob"}, ...]}`, in the
    unit of the file.

    Args:
        label_map: label name -> id, or a JSON file with it.
        n_classes: number of labels, against which the `label_map` is checked.
        span_unit: what start and end count: word or char; by default what the text tells.
        missing_labels: whether the spans of a training row may be null; it then trains only tasks that share
            it.

    Raises:
        ConfigError: a setting out of its range, or a label_map that does not fit `n_classes`.
        DataError: the vocabulary or label_map cannot be read.
    """

    cacheable = True
    known_columns: ClassVar[tuple[str, ...]] = ("spans", "text_a")

    def setup(
        self,
        label_map: FilePath | dict[str, int],
        *,
        n_classes: int | None = None,
        span_unit: str | None = None,
        missing_labels: bool = False,
    ) -> None:
        self.check_length()
        if span_unit is not None:
            raise_any(choice_problems(("word", "char"), span_unit=span_unit))
        self.span_unit = span_unit
        self.missing_labels = missing_labels
        self.labels = Labels(n_classes, label_map)
        self.outputs_attr = {**SEQUENCE_ATTR, "word_starts": TensorSpec(("batch", "words"), torch.long)}
        self.targets_attr = {"span_labels": TensorSpec(("batch", "words", "words"), torch.long)}
        self.truth_names = ("spans",)

    @property
    def span_labels(self) -> Labels:
        """The labels of spans."""
        return self.labels

    def example_of(self, row: TableRow, with_targets: bool, missing_labels: bool) -> SpanExample | None:
        text = row.cells["text_a"]
        counts_characters = isinstance(text, str) and self.span_unit != "word"
        words = _WORD.findall(text) if counts_characters else text
        example = SpanExample(words_of(words, row.place), row.place)
        if counts_characters:
            example = replace(example, text=text, offsets=[match.span() for match in _WORD.finditer(text)])
        elif self.span_unit == "char":
            raise DataError(f"{row.place}: text_a should be a string with span_unit: char, not {text!r}")
        if not with_targets:
            return example
        if (cell := row.cells.get("spans")) in (None, ""):
            return example if missing_labels else None
        return replace(example, spans=self._spans(cell, example))

    def _spans(self, cell: Any, example: SpanExample) -> list[Span]:
        found = list_in(cell, example.place, "spans", "objects")
        spans = [example.span(value, number, self.span_labels) for number, value in enumerate(found)]
        places = [span[:2] for span in spans]
        if twice := [number for number, place in enumerate(places) if places.index(place) < number]:
            first = places.index(places[twice[0]])
            raise DataError(f"{example.place}: span {twice[0]} has the words of span {first}; leave one out")
        return spans

    def numbers_of(self, example: SpanExample, window: range, with_targets: bool) -> dict[str, Sequence[int]]:
        if not with_targets:
            return {}
        if example.spans is None:
            return {"spans": [-1, -1, NO_LABEL]}
        held = [example.spans[number] for number in held_spans(example, window)]
        return {
            "spans": [n for s in held for n in (s.first - window.start, s.beyond - window.start, s.label)]
        }

    def encode(self, examples: Sequence[SpanExample], with_targets: bool) -> Rows:
        rows = super().encode(examples, with_targets)
        for name in ("spans", "relations"):
            if self.facts is not None and name in rows:
                total = sum(len(getattr(example, name) or ()) for example in examples)
                kept = int((rows[name].values[::3] >= 0).sum())
                self.facts.shortened(name, total - kept, total, f"max_seq_len (now {self.max_seq_len})")
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

    def truths(self, examples: Iterable[SpanExample]) -> Iterator[Record]:
        for example in examples:
            check_labelled(NO_LABEL if example.spans is None else 0, example.place)
            yield {"spans": self.listed(example)}

    def listed(self, example: SpanExample) -> list[Record]:
        """The spans of an example as its file has them."""
        spans = example.spans or ()
        return [example.record(span.first, span.beyond, self._name(span.label)) for span in spans]

    def _name(self, label: int) -> str:
        return self.span_labels.names.get(label, str(label))


def held_spans(example: SpanExample, window: range) -> list[int]:
    """The numbers of the spans that lie in a window of words."""
    return [
        number
        for number, span in enumerate(example.spans or ())
        if window.start <= span.first and span.beyond <= window.stop
    ]


def windows_in(rows: Rows, places: range) -> list[range]:
    """The words of each of an example's rows."""
    ends = accumulate((len(rows["word_starts"][place]) for place in places), initial=0)
    return list(starmap(range, pairwise(ends)))
