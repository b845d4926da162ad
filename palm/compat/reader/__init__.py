"""Readers under the names and with the arguments of PaddlePALM 2.x.

Keyword arguments beyond those of 2.x are settings of the reader in `palm.reader` that a class stands for.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

from palm import reader
from palm.compat.reader import base_reader
from palm.compat.reader.base_reader import LoadingReader
from palm.reader.predictions import Record

__all__ = [
    "ClassifyReader",
    "LoadingReader",
    "MRCReader",
    "MaskLMReader",
    "MatchReader",
    "SequenceLabelReader",
    "base_reader",
]


class TextReader(LoadingReader):
    """The arguments that readers of 2.x have in common."""

    def __init__(
        self,
        vocab_path: str | Path,
        max_len: int,
        tokenizer: str = "wordpiece",  # noqa: ARG002 - the vocabulary decides
        lang: str = "en",
        seed: int | None = None,
        do_lower_case: bool = False,
        phase: str = "train",
        dev_count: int = 1,  # noqa: ARG002
        print_prefix: str = "",  # noqa: ARG002
        **settings: Any,
    ) -> None:
        common: dict[str, Any] = {"lang": lang, "seed": seed, "do_lower_case": do_lower_case, "phase": phase}
        super().__init__(vocab_path, max_len, **common, **settings)


class ClassifyReader(TextReader, reader.ClassifyReader):
    """`palm.reader.ClassifyReader` with the arguments of 2.x."""

    stands_for = reader.ClassifyReader


class MatchReader(LoadingReader, reader.MatchReader):
    """`palm.reader.MatchReader` with the arguments of 2.x."""

    stands_for = reader.MatchReader

    def __init__(
        self,
        vocab_path: str | Path,
        max_len: int,
        tokenizer: str = "wordpiece",  # noqa: ARG002 - the vocabulary decides
        lang: str = "en",
        seed: int | None = None,
        do_lower_case: bool = False,
        learning_strategy: str = "pointwise",
        phase: str = "train",
        dev_count: int = 1,  # noqa: ARG002
        print_prefix: str = "",  # noqa: ARG002
        **settings: Any,
    ) -> None:
        common: dict[str, Any] = {"lang": lang, "seed": seed, "do_lower_case": do_lower_case, "phase": phase}
        super().__init__(vocab_path, max_len, learning_strategy=learning_strategy, **common, **settings)


class SequenceLabelReader(LoadingReader, reader.SequenceLabelReader):
    """`palm.reader.SequenceLabelReader` with the arguments of 2.x."""

    stands_for = reader.SequenceLabelReader

    def __init__(
        self,
        vocab_path: str | Path,
        max_len: int,
        label_map_config: str | Path | dict[str, int],
        tokenizer: str = "wordpiece",  # noqa: ARG002 - the vocabulary decides
        lang: str = "en",
        seed: int | None = None,
        do_lower_case: bool = False,
        phase: str = "train",
        dev_count: int = 1,  # noqa: ARG002
        print_prefix: str = "",  # noqa: ARG002
        **settings: Any,
    ) -> None:
        common: dict[str, Any] = {"lang": lang, "seed": seed, "do_lower_case": do_lower_case, "phase": phase}
        super().__init__(vocab_path, max_len, label_map_config, **common, **settings)

    def results(self, records: Iterable[Record]) -> Iterator[list[int]]:
        """A list of label ids per text, with the largest id for `[CLS]` and `[SEP]` around those of words."""
        ids = {name: number for number, name in self.labels.names.items()}
        for record in records:
            words = [ids[name] if name in ids else int(name) for name in record["labels"]]
            yield [max(ids.values()), *words, max(ids.values())]


class MRCReader(LoadingReader, reader.MRCReader):
    """`palm.reader.MRCReader` with the arguments of 2.x."""

    stands_for = reader.MRCReader

    def __init__(
        self,
        vocab_path: str | Path,
        max_len: int,
        max_query_len: int,
        doc_stride: int,
        tokenizer: str = "wordpiece",  # noqa: ARG002 - the vocabulary decides
        lang: str = "en",
        seed: int | None = None,
        do_lower_case: bool = False,
        remove_noanswer: bool = True,
        phase: str = "train",
        **settings: Any,
    ) -> None:
        common: dict[str, Any] = {"lang": lang, "seed": seed, "do_lower_case": do_lower_case, "phase": phase}
        common["remove_noanswer"] = remove_noanswer
        super().__init__(vocab_path, max_len, max_query_len, doc_stride, **common, **settings)

    def in_memory(self, results: Iterable[Record]) -> dict[str, str]:
        """Question id -> answer, as in `predictions.json`."""
        return {record["id"]: record["text"] for record in results}


class MaskLMReader(TextReader, reader.MaskLMReader):
    """`palm.reader.MaskLMReader` with the arguments of 2.x."""

    stands_for = reader.MaskLMReader

    def results(self, records: Iterable[Record]) -> Iterator[Record]:
        """The predicted words of all rows in sequence, as `{"index": 0, "word_id": 17}`."""
        predicted = (word["predicted"] for record in records for word in record["words"])
        for index, word in enumerate(predicted):
            yield {"index": index, "word_id": self.tokenizer.ids[word]}
