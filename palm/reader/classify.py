"""The `cls` reader: one or two texts per line, and a label."""

from __future__ import annotations

from palm.config import FilePath
from palm.core.errors import ConfigError, about
from palm.reader.base import READERS
from palm.reader.labels import labels_of
from palm.reader.rows import OnBadRow
from palm.reader.table import TextReader
from palm.reader.tables.files import TableFormat


@READERS.register("cls")
class ClassifyReader(TextReader):
    """Reader of tables with the columns `label` and `text_a`, and optionally `text_b`.

    A row is `[CLS] text_a [SEP]` or `[CLS] text_a [SEP] text_b [SEP]`, cut to `max_seq_len`. A
    record is `{"index": 0, "label": 3, "logits": [...], "probs": [...]}`, with `label_name` if there is
    a `label_map`; for real labels it is `{"index": 0, "value": 3.2}`.

    Args:
        n_classes: number of labels, against which the file's labels are checked; not used for real labels.
        label_map: label name -> id, or a JSON file with it, if labels are written as names.
        label_type: 'class', 'soft' for a probability of each class, 'real' for real numbers, or 'count' for
            whole numbers of 0 or more.
        missing_labels: whether a training row may have no class label; the row is then used only for tasks
            that share it.

    Raises:
        ConfigError: a setting out of its range, or a label_map that does not fit `n_classes`.
        DataError: the vocabulary or label_map cannot be read.

    Source: PaddlePALM 0.2.1, appendix A, `cls`.
    """

    cacheable = True

    def __init__(
        self,
        vocab_path: FilePath,
        max_seq_len: int,
        *,
        n_classes: int | None = None,
        label_map: FilePath | dict[str, int] | None = None,
        label_type: str = "class",
        missing_labels: bool = False,
        do_lower_case: bool = False,
        for_cn: bool = False,
        task_id: int = 0,
        on_bad_row: OnBadRow = "error",
        columns: dict[str, str] | None = None,
        format: TableFormat | None = None,
    ) -> None:
        super().__init__(vocab_path, max_seq_len, do_lower_case, for_cn, task_id, on_bad_row, columns, format)
        if missing_labels and label_type != "class":
            raise ConfigError(
                about("missing_labels", f": a {label_type} label cannot be missing; set it to False")
            )
        self.missing_labels = missing_labels
        self.use_labels(labels_of(label_type, n_classes, label_map))
