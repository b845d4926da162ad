"""The `cls` reader: one text (or two) per line, and its label."""

from __future__ import annotations

from typing import ClassVar

from palm.config import FilePath
from palm.core.errors import ConfigError
from palm.reader.base import READERS
from palm.reader.table import TextReader
from palm.reader.tables.files import TableFormat
from palm.reader.text.bad_rows import OnBadRow
from palm.reader.text.labels import labels_of


@READERS.register("cls")
class ClassifyReader(TextReader):
    """Reads TSV files with the columns `label` and `text_a`, and `text_b` where there is one.

    A row is `[CLS] text_a [SEP]` or `[CLS] text_a [SEP] text_b [SEP]`, cut to `max_seq_len`. A
    record is `{"index": 0, "label": 3, "logits": [...], "probs": [...]}`, with `label_name` if there is
    a `label_map`; for real labels it is `{"index": 0, "value": 3.2}`.

    Args:
        vocab_path: the vocabulary: one token a line, or RoBERTa's `vocab.json` with `merges.txt` beside
            it, or a `tokenizer.json`.
        max_seq_len: the longest row in tokens, `[CLS]` and `[SEP]` included.
        do_lower_case: lower-case the texts and strip accents, as an uncased vocabulary needs it; a
            vocabulary in a JSON file decides this for itself.
        for_cn: take all blanks out of the texts, for Chinese data whose words are separated by blanks.
            Every Chinese character is a token with or without it.
        task_id: the number that ERNIE's task embedding gets.
        n_classes: number of labels, against which the file's labels are checked; not used for real ones.
        label_map: label name -> id, or a JSON file with it, where labels are written as names.
        label_type: 'class', or 'real' for labels that are real numbers.
        missing_labels: whether a training row's label, of a class, may be left empty; the row then trains
            only tasks that share it.
        on_bad_row: rows to train or evaluate on that cannot be used: error refuses the file, with all of
            them; skip leaves them out; repair mends what has one obvious mend and leaves out the others.
        columns: a column of the reader -> that of the files, where it has another name there; dots lead
            into nested objects.
        format: the format of tables whose names tell none: tsv where absent, csv, jsonl, parquet, arrow.

    Raises:
        ConfigError: a setting out of its range, or a label_map that does not fit `n_classes`.
        DataError: the vocabulary or label_map cannot be read.

    Source: PaddlePALM 0.2.1, appendix A, `cls`.
    """

    cacheable = True
    known_columns = ("label", "text_a", "text_b")
    aliases: ClassVar[dict[str, str]] = TextReader.aliases | {"num_classes": "n_classes"}
    optional_columns = ("text_b",)
    parsed_form = "a string or {'text_a': …} (and 'text_b')"

    def __init__(
        self,
        vocab_path: FilePath,
        max_seq_len: int,
        *,
        do_lower_case: bool = False,
        for_cn: bool = False,
        task_id: int = 0,
        n_classes: int | None = None,
        label_map: FilePath | dict[str, int] | None = None,
        label_type: str = "class",
        missing_labels: bool = False,
        on_bad_row: OnBadRow = "error",
        columns: dict[str, str] | None = None,
        format: TableFormat | None = None,
    ) -> None:
        super().__init__(vocab_path, max_seq_len, do_lower_case, for_cn, task_id, on_bad_row)
        self.use_columns(columns, format)
        if missing_labels and label_type == "real":
            raise ConfigError(["missing_labels: a real label cannot be left empty; set it to False"])
        self.missing_labels = missing_labels
        self.use_labels(labels_of(label_type, n_classes, label_map))
