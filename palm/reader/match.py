"""The `match` reader: two texts per line, and whether they match."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, ClassVar

from palm.config import FilePath
from palm.reader.base import READERS
from palm.reader.labels import Labels
from palm.reader.predictions import Record
from palm.reader.rows import Rows
from palm.reader.text import TextExample, TextReader, labelled_records


@READERS.register("match")
class MatchReader(TextReader):
    """Reads TSV files with the columns `label`, `text_a` and `text_b`.

    A row is `[CLS] text_a [SEP] text_b [SEP]`; where both do not fit, the longer one loses its last
    token until they do. Records are those of `ClassifyReader`.

    Args:
        vocab_path: the vocabulary, one token a line.
        max_seq_len: the longest row in tokens, `[CLS]` and both `[SEP]` included.
        do_lower_case: lower-case the texts and strip accents, as an uncased vocabulary needs it.
        for_cn: take all blanks out of the texts, as Chinese data that is cut into words wants it.
        task_id: the number that ERNIE's task embedding gets.
        n_classes: number of labels; 0 for no match and 1 for a match.
        label_map: label name -> id, or a JSON file with it, where labels are written as names.

    Raises:
        ConfigError: a setting out of its range, or a label_map that does not fit `n_classes`.
        DataError: the vocabulary or label_map cannot be read.

    Source: PaddlePALM 0.2.1, appendix A, `match`.
    """

    aliases: ClassVar[dict[str, str]] = TextReader.aliases | {"num_classes": "n_classes"}
    text_columns = ("text_a", "text_b")
    parsed_form = "a pair of strings or {'text_a': …, 'text_b': …}"
    min_seq_len = 5

    def __init__(
        self,
        vocab_path: FilePath,
        max_seq_len: int,
        *,
        do_lower_case: bool = False,
        for_cn: bool = False,
        task_id: int = 0,
        n_classes: int = 2,
        label_map: FilePath | dict[str, int] | None = None,
    ) -> None:
        super().__init__(vocab_path, max_seq_len, do_lower_case, for_cn, task_id)
        self.labels: Labels = Labels(n_classes, label_map)

    def cells_of(self, text: Any) -> dict[str, Any] | None:
        if isinstance(text, (tuple, list)) and len(text) == 2:
            return {"text_a": text[0], "text_b": text[1]}
        return text if isinstance(text, dict) else None

    def records(
        self,
        examples: Sequence[TextExample],  # noqa: ARG002
        rows: Rows,  # noqa: ARG002
        decoded: Sequence[Record],
        first: int,
    ) -> Iterator[Record]:
        yield from labelled_records(decoded, self.labels, first)
