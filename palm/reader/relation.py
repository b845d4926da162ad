"""The `relation` reader: texts with spans and labelled pairs of spans."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import torch

from palm.config import FilePath
from palm.core.component import choice_problems, raise_any
from palm.core.errors import ConfigError, DataError, about
from palm.core.saved import NO_LABEL, Tensors, TensorSpec
from palm.reader.base import READERS, Draw
from palm.reader.labels import Labels, check_labelled, list_in
from palm.reader.predictions import Record
from palm.reader.rows import OnBadRow, RepairableError, Rows, padded
from palm.reader.span import Relation, SpanExample, SpanReader, held_spans, windows_in
from palm.reader.tables.columns import TableRow
from palm.reader.tables.files import TableFormat


@READERS.register("relation")
class RelationReader(SpanReader):
    """Reader of tables with the columns `text_a`, `spans` and `relations`.

    A relation is `{"head": 0, "tail": 2, "label": "lives_in"}`; head and tail are indices into the list of
    spans, and a pair may have several relations. Texts and spans are those of `span`; a relation whose spans
    are not in one row is not trained on. A record is that of `span`, with `relations` between its spans:
    `[{"head", "tail", "label", "prob"}, ...]`.

    Args:
        label_map: relation label -> id, or a JSON file with it.
        n_classes: number of relation labels, against which the `label_map` is checked.
        span_unit: what start and end count: word or char; by default, words of a list and characters of a
            string.
        unit: what the words of a string are, see `SpanReader`.
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

    def __init__(
        self,
        vocab_path: FilePath,
        max_seq_len: int,
        label_map: FilePath | dict[str, int],
        *,
        n_classes: int | None = None,
        span_unit: str | None = None,
        unit: str = "word",
        missing_labels: bool = False,
        span_label_map: FilePath | dict[str, int] | None = None,
        n_span_classes: int | None = None,
        spans: str = "predicted",
        do_lower_case: bool = False,
        for_cn: bool = False,
        task_id: int = 0,
        on_bad_row: OnBadRow = "error",
        columns: dict[str, str] | None = None,
        format: TableFormat | None = None,
    ) -> None:
        super().__init__(
            vocab_path,
            max_seq_len,
            label_map,
            n_classes=n_classes,
            span_unit=span_unit,
            unit=unit,
            missing_labels=missing_labels,
            do_lower_case=do_lower_case,
            for_cn=for_cn,
            task_id=task_id,
            on_bad_row=on_bad_row,
            columns=columns,
            format=format,
        )
        raise_any(choice_problems(("given", "predicted"), spans=spans))
        if span_label_map is None:
            raise ConfigError(
                about("span_label_map", " is missing; set it to a mapping from span label to id")
            )
        self.span_labels = Labels(n_span_classes, span_label_map)
        self.spans_given = spans == "given"
        self.num_labels = self.labels.count
        one_per_span = TensorSpec(("batch", "spans"), torch.long)
        places = {"span_starts": one_per_span, "span_ends": one_per_span}
        pairs = TensorSpec(("batch", "spans", "spans", self.num_labels), torch.long)
        if self.spans_given:
            self.input_columns = ("text_a", "spans")
            self.outputs_attr = {**self.outputs_attr, **places}
            self.targets_attr = {"relation_labels": pairs}
        else:
            self.targets_attr = {**self.targets_attr, **places, "relation_labels": pairs}
        self.gold_names = ("relations", "spans")

    def example_of(self, row: TableRow, with_targets: bool) -> SpanExample | None:
        try:
            example = super().example_of(row, with_targets or self.spans_given)
        except RepairableError as error:
            raise RepairableError(
                str(error), self._related(row, error.repaired, with_targets), error.done
            ) from None
        return self._related(row, example, with_targets)

    def _related(self, row: TableRow, example: SpanExample | None, with_targets: bool) -> SpanExample | None:
        """Add the relations of a row to its spans."""
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
