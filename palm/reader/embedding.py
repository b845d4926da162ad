"""The `embedding` reader: pairs of texts with the same meaning, optionally with negatives."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import ClassVar

from palm.config import FilePath
from palm.core.component import choice_problems, raise_any
from palm.core.errors import DataError
from palm.reader.base import READERS
from palm.reader.groups import GroupExample, GroupReader
from palm.reader.labels import Label, Labels, RealLabels
from palm.reader.predictions import Record
from palm.reader.rows import OnBadRow
from palm.reader.table import TextExample
from palm.reader.tables.columns import TableRow
from palm.reader.tables.files import TableFormat


@READERS.register("embedding")
class EmbeddingReader(GroupReader):
    """Reader of tables with the columns `text_a` and `text_b`, a matching pair, and optionally `negatives`.

    Every text is a separate sequence `[CLS] text [SEP]`; `negatives`, which do not match `text_a`, are only
    used in training. A numeric label says how similar the two texts are. For embedding texts, `text_a` is
    enough. A record is `{"index": 0, "embedding": [...]}`; with a `text_b`, also its `embedding_b` and
    `value`, the cosine of the two.

    Args:
        label_type: absent for matching pairs; 'real' for a column `label` with numbers from -1 to 1.
        negative_columns: the columns of the negatives if each has its own column.

    Raises:
        ConfigError: a setting out of its range.
        DataError: the vocabulary cannot be read.
    """

    cacheable = True
    known_columns = ("label", "text_a", "text_b", "negatives")
    optional_columns = ("text_b", "negatives")
    list_column = "negatives"
    label_columns: Sequence[str] = ()
    parsed_form: ClassVar[str] = "a text or {'text_a': …} (and 'text_b')"

    def __init__(
        self,
        vocab_path: FilePath,
        max_seq_len: int,
        *,
        label_type: str | None = None,
        negative_columns: list[str] | None = None,
        do_lower_case: bool = False,
        for_cn: bool = False,
        task_id: int = 0,
        on_bad_row: OnBadRow = "error",
        columns: dict[str, str] | None = None,
        format: TableFormat | None = None,
    ) -> None:
        super().__init__(vocab_path, max_seq_len, do_lower_case, for_cn, task_id, on_bad_row, columns, format)
        self.use_list(negative_columns)
        self.targets_attr = {}
        self.gold_names = ("pair",)
        if label_type is not None:
            raise_any(choice_problems(("real",), label_type=label_type))
            self.label_columns = ("label",)
            self.use_labels(RealLabels())

    def label_of(self, row: TableRow, labels: Labels | RealLabels) -> Label | None:
        value = super().label_of(row, labels)
        if isinstance(value, float) and abs(value) > 1:
            raise DataError(f"{row.place}: the label {value!r} should be from -1 to 1, as a cosine")
        return value

    def columns_of(self, with_targets: bool) -> tuple[str, ...]:
        trained = ("text_b", *self.list_columns) if with_targets else ()
        return (*super().columns_of(with_targets), *trained)

    def sequences_of(self, example: GroupExample, with_targets: bool) -> Iterator[tuple[str, str | None]]:
        yield example.text_a, None
        if example.text_b is not None:
            yield example.text_b, None
        for negative in example.texts if with_targets else ():
            yield negative, None

    def gold(self, example: TextExample) -> Record:
        return {"pair": (example.text_a, example.text_b)} if self.labels is None else super().gold(example)
