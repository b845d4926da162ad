"""The `cls` reader: one text (or two) per line, and its label."""

from __future__ import annotations

from typing import ClassVar

from palm.config import FilePath
from palm.core.errors import ConfigError
from palm.reader.base import READERS
from palm.reader.table import TextReader
from palm.reader.text.labels import labels_of


@READERS.register("cls")
class ClassifyReader(TextReader):
    """Reads TSV files with the columns `label` and `text_a`, and `text_b` where there is one.

    A row is `[CLS] text_a [SEP]` or `[CLS] text_a [SEP] text_b [SEP]`, cut to `max_seq_len`. A
    record is `{"index": 0, "label": 3, "logits": [...], "probs": [...]}`, with `label_name` if there is
    a `label_map`; for real labels it is `{"index": 0, "value": 3.2}`.

    Args:
        n_classes: number of labels, against which the file's labels are checked; not used for real ones.
        label_map: label name -> id, or a JSON file with it, where labels are written as names.
        label_type: 'class', 'soft' for a probability of each, 'real' for labels that are real numbers, or
            'count' for whole ones from 0 on.
        missing_labels: whether a training row's label, of a class, may be left empty; the row then trains
            only tasks that share it.

    Raises:
        ConfigError: a setting out of its range, or a label_map that does not fit `n_classes`.
        DataError: the vocabulary or label_map cannot be read.

    Source: PaddlePALM 0.2.1, appendix A, `cls`.
    """

    cacheable = True
    aliases: ClassVar[dict[str, str]] = TextReader.aliases | {"num_classes": "n_classes"}

    def setup(
        self,
        *,
        n_classes: int | None = None,
        label_map: FilePath | dict[str, int] | None = None,
        label_type: str = "class",
        missing_labels: bool = False,
    ) -> None:
        super().setup()
        if missing_labels and label_type != "class":
            raise ConfigError(f"missing_labels: a {label_type} label cannot be left empty; set it to False")
        self.missing_labels = missing_labels
        self.use_labels(labels_of(label_type, n_classes, label_map))
