"""The `multiple_choice` reader: a text, its choices and the index of the right one."""

from __future__ import annotations

from typing import ClassVar

from palm.config import FilePath
from palm.core.errors import DataError
from palm.reader.base import READERS
from palm.reader.groups import GroupExample, GroupReader
from palm.reader.labels import Label, Labels
from palm.reader.rows import OnBadRow
from palm.reader.tables.columns import TableRow
from palm.reader.tables.files import TableFormat


@READERS.register("multiple_choice")
class MultipleChoiceReader(GroupReader):
    """Reader of tables with the columns `label`, `text_a` and `choices`, and optionally `text_b`.

    Each of the two or more choices is a sequence `[CLS] text_a [SEP] choice [SEP]`; `text_b`, a question
    about a passage or the start of a sentence, is put before the choice. A record is
    `{"index": 0, "label": 2, "logits": [...], "probs": [...]}`, with `label_name` if there is a `label_map`.

    Args:
        choice_columns: the columns of the choices if each has its own column.
        label_map: name -> index of the choice from 0, if labels are written as names, such as letters.

    Raises:
        ConfigError: a setting out of its range.
        DataError: the vocabulary or label_map cannot be read.

    Source: Zellers et al., 2018, "SWAG", as its authors encode it for BERT.
    """

    cacheable = True
    known_columns = ("label", "text_a", "text_b", "choices")
    text_columns = ("text_a", "choices")
    list_column = "choices"
    parsed_form: ClassVar[str] = "(text, [choice, …]) or {'text_a': …, 'choices': […]} (and 'text_b')"
    min_seq_len = 5

    def __init__(
        self,
        vocab_path: FilePath,
        max_seq_len: int,
        *,
        choice_columns: list[str] | None = None,
        label_map: FilePath | dict[str, int] | None = None,
        do_lower_case: bool = False,
        for_cn: bool = False,
        task_id: int = 0,
        on_bad_row: OnBadRow = "error",
        columns: dict[str, str] | None = None,
        format: TableFormat | None = None,
    ) -> None:
        super().__init__(vocab_path, max_seq_len, do_lower_case, for_cn, task_id, on_bad_row, columns, format)
        self.use_list(choice_columns)
        self.use_labels(Labels(None, label_map))

    def _example(self, row: TableRow, label: Label | None) -> GroupExample:
        example = super()._example(row, label)
        count = len(example.texts)
        if count < 2:
            raise DataError(f"{row.place}: choices should have at least 2 texts, not {count}")
        if isinstance(label, int) and label >= count:
            raise DataError(
                f"{row.place}: the label {label} should be the index of a choice, from 0 to {count - 1}"
            )
        return example
