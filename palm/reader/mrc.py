"""The `mrc` reader: questions about contexts of any length, cut into windows and put together again."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import count
from pathlib import Path
from typing import Any, ClassVar, NamedTuple

import numpy as np
import torch

from palm.core.checks import count_problems, raise_any
from palm.core.errors import DataError
from palm.core.tensor_specs import Tensors
from palm.reader.answers import ContextWindow, best_answers, null_odds
from palm.reader.base import READERS, Draw
from palm.reader.predictions import Predictions, Record, write_answers
from palm.reader.rows.collate import ONE_PER_ROW, SEQUENCE_ATTR
from palm.reader.rows.facts import TextFacts
from palm.reader.rows.rows import Column, Rows
from palm.reader.tables.files import TableFormat, files_of, format_of
from palm.reader.tables.record import TableRow, is_missing
from palm.reader.tables.selection import table_of
from palm.reader.text.squad import (
    SHOWN_IDS,
    SquadFile,
    SquadQuestion,
    answerable,
    parsed_questions,
)
from palm.reader.text.tokenizer import Pieces
from palm.reader.text.windows import Window, best_context, windows_of
from palm.reader.tokenizing import TokenizingReader

FIRST_UNIQUE_ID = 1000000000

N_BEST_SIZE = 20
"""Answers of a question in `nbest_predictions.json`, where the head does not give their number."""


class TokenSpan(NamedTuple):
    """The tokens of an answer in its document, both ends included."""

    first: int
    last: int


@READERS.register("mrc")
class MRCReader(TokenizingReader):
    """Reads SQuAD's JSON: contexts, questions, and answers as pieces of the context.

    A row is `[CLS] question [SEP] window [SEP]`; a context that does not fit is cut into windows that
    overlap. For training every question needs an answer, and windows without the whole answer are left
    out, unless `remove_noanswer` is off. Predicted answers are pieces of the context, character by
    character. A record is `{"id": "q1", "text": "Rome", "nbest": [{"text", "probability",
    "start_logit", "end_logit"}, ...]}`, with `null_odds` where the head reckons with no answer.

    Args:
        max_query_len: tokens of the question that are kept.
        doc_stride: tokens from the beginning of one window to that of the next.
        for_cn: accepted for PaddlePALM's files; it has no effect, because answers are pieces of the context.
        remove_noanswer: train only on windows with the answer; otherwise on all of them, and on
            questions without an answer, with `[CLS]` for the answer.

    Raises:
        ConfigError: a setting out of its range, or no room for a context.
        DataError: the vocabulary cannot be read.

    Source: PaddlePALM 0.2.1, appendix A, `mrc`; Devlin et al., 2018, the authors' SQuAD program.
    """

    cacheable = True
    known_columns = ("id", "question", "context", "answers", "answer_start")
    split_by = ("context",)
    ignored_settings: ClassVar[dict[str, str]] = {"for_cn": "answers are pieces of the context as it is"}
    order_2x = (
        *TokenizingReader.order_2x[:2],
        "max_query_len",
        "doc_stride",
        *TokenizingReader.order_2x[2:-1],
        "remove_noanswer",
        "phase",
    )

    def setup(self, max_query_len: int, doc_stride: int, *, remove_noanswer: bool = True) -> None:
        self.num_special = 2 + self.tokenizer.separators
        problems = count_problems(max_query_len=max_query_len, doc_stride=doc_stride)
        least = max_query_len + self.num_special + 1
        if self.max_seq_len < least:
            problems.append(
                f"max_seq_len {self.max_seq_len!r} leaves no room for a context: it should be at least "
                f"{least}, for max_query_len {max_query_len!r} and {self.num_special} special tokens"
            )
        raise_any(problems)
        self.max_query_len = max_query_len
        self.doc_stride = doc_stride
        self.remove_noanswer = remove_noanswer
        self.outputs_attr = {**SEQUENCE_ATTR, "unique_ids": ONE_PER_ROW}
        self.targets_attr = {"start_positions": ONE_PER_ROW, "end_positions": ONE_PER_ROW}
        self.truth_names = ("answers",)

    def read(self, path: Path, with_targets: bool) -> Iterator[SquadQuestion]:
        return self._questions(SquadFile(Path(path), "positions" if with_targets else "none"))

    def read_true(self, path: Path) -> Iterator[SquadQuestion]:
        """Every question with the texts of all its answers, wherever they are; one may have none."""
        return self._questions(SquadFile(Path(path), "texts"))

    def _questions(self, file: SquadFile) -> Iterator[SquadQuestion]:
        """The questions of a file; to train or evaluate on, of a table's rows only those with answers."""
        with_targets = file.answers != "none"
        wants_answers = with_targets and self.table_format(file.path, self.format) != "squad"
        numbers = count(1)

        def example(row: TableRow) -> SquadQuestion | None:
            number = next(numbers)
            if wants_answers and is_missing(row.cells["answers"]):
                return None
            question = file.question(row, number)
            if file.answers != "positions" or not (question.answers or self.remove_noanswer):
                return question
            return answerable(question)

        columns = ("question", "context", "answers") if wants_answers else ("question", "context")
        optional = [name for name in self.known_columns if name not in columns]
        yield from self.table_examples(file.path, with_targets, columns, example, optional)
        if file.num_empty:
            ids = _listed(file.empty, file.num_empty)
            self.warn_once(
                f"{file.path}: {file.num_empty} questions are empty, or their context is ({ids}); they get "
                "answers like the others, which mean little"
            )

    @classmethod
    def table_format(cls, path: Path, named: TableFormat | None) -> TableFormat | None:
        first = files_of(table_of(Path(path)))[0]
        return format_of(first) or (named if named is not None and ".json" not in first.suffixes else "squad")

    def truths(self, examples: Iterable[SquadQuestion]) -> Iterator[Record]:
        for example in examples:
            yield {"id": example.id, "answers": [answer.text for answer in example.answers]}

    def parse(self, texts: Iterable[Any]) -> Iterator[SquadQuestion]:
        return parsed_questions(texts)

    def encode(self, examples: Sequence[SquadQuestion], with_targets: bool) -> Rows:
        queries = self.tokenizer.encode([example.question for example in examples])
        contexts = list(dict.fromkeys(example.context for example in examples))
        documents = dict(zip(contexts, self.tokenizer.encode_with_offsets(contexts), strict=True))
        if self.facts is not None:
            self._count(self.facts, examples, queries, documents)
        columns: dict[str, list[Any]] = defaultdict(list)
        unheld = []
        for index, example in enumerate(examples):
            document = documents[example.context]
            try:
                answer = _answer_span(example, document) if with_targets else None
            except DataError as error:
                self.refuse([error])
                continue
            query = queries[index][: self.max_query_len]
            windows = self._windows(query, document, answer)
            for window in windows:
                columns["example"].append(index)
                self._add_row(columns, query, document, window, answer)
            if not windows:
                unheld.append(example.id)
        if unheld:
            ids = _listed(unheld[:SHOWN_IDS], len(unheld))
            self.warn_once(
                f"{len(unheld)} of {len(examples)} questions are left out of training, because no window "
                f"holds their whole answer: {ids}; raise max_seq_len or lower doc_stride"
            )
        rows = {name: Column.scalar(columns[name]) for name in ("first_segment", "example", "window_start")}
        rows |= {name: Column.ragged(columns[name]) for name in ("token_ids", "char_starts", "char_ends")}
        if with_targets:
            rows["start_positions"] = Column.scalar(columns["start_positions"])
            rows["end_positions"] = Column.scalar(columns["end_positions"])
        return Rows(rows)

    def _windows(self, query: Sequence[int], document: Pieces, answer: TokenSpan | None) -> list[Window]:
        """The windows of a document that are rows: all, or those that hold the answer."""
        windows = windows_of(len(document), self._room(query), self.doc_stride)
        if answer is None or not self.remove_noanswer:
            return windows
        return [window for window in windows if _holds(window, answer)]

    def _room(self, query: Sequence[int]) -> int:
        """The number of tokens of a context that fit into a row with this question."""
        return self.max_seq_len - len(query) - self.num_special

    def _add_row(
        self,
        columns: dict[str, list[Any]],
        query: list[int],
        document: Pieces,
        window: Window,
        answer: TokenSpan | None,
    ) -> None:
        tokens = slice(window.start, window.start + window.length)
        first = len(query) + self.num_special - 1  # the column where the window begins
        columns["token_ids"].append(
            [
                self.tokenizer.cls_id,
                *query,
                *self.tokenizer.between,
                *document.ids[tokens].tolist(),
                self.tokenizer.sep_id,
            ]
        )
        columns["first_segment"].append(first)
        columns["window_start"].append(window.start)
        columns["char_starts"].append(document.starts[tokens])
        columns["char_ends"].append(document.ends[tokens])
        held = answer if answer is not None and _holds(window, answer) else None
        # `[CLS]` where there is no answer
        columns["start_positions"].append(held.first - window.start + first if held else 0)
        columns["end_positions"].append(held.last - window.start + first if held else 0)

    def collate(self, rows: Rows, indices: Sequence[int], draw: Draw) -> Tensors:
        batch = super().collate(rows, indices, draw)
        batch["unique_ids"] = FIRST_UNIQUE_ID + torch.as_tensor(indices, dtype=torch.long)
        return batch

    def records(
        self,
        examples: Sequence[SquadQuestion],
        rows: Rows,
        decoded: Sequence[Record],
        first: int,  # noqa: ARG002
    ) -> Iterator[Record]:
        owners = rows["example"].values
        bounds = np.searchsorted(owners, np.arange(len(examples) + 1))
        for example, start, end in zip(examples, bounds, bounds[1:], strict=False):
            indices = range(start, end)
            values = decoded[start:end]
            cuts = [Window(int(rows["window_start"][i]), len(rows["char_starts"][i])) for i in indices]
            windows = [
                ContextWindow(
                    int(rows["first_segment"][i]), rows["char_starts"][i], rows["char_ends"][i], best
                )
                for i, best in zip(indices, best_context(cuts), strict=True)
            ]
            spans = [value["spans"] for value in values]
            null = min((tuple(value["null"]) for value in values if "null" in value), key=sum, default=None)
            n_best_size = values[0].get("n_best_size", N_BEST_SIZE)
            nbest = best_answers(example.context, windows, spans, n_best_size, null)
            record = {"id": example.id, "text": nbest[0]["text"], "nbest": nbest}
            if null is not None:
                odds = null_odds(nbest, null)
                best_text = next((answer["text"] for answer in nbest if answer["text"]), "")
                record["text"] = "" if odds > values[0]["null_threshold"] else best_text
                record["null_odds"] = odds
            yield record

    def in_memory(self, results: Iterable[Record]) -> dict[str, str]:
        """Question id -> answer, as `predictions.json` has them."""
        return {record["id"]: record["text"] for record in results}

    def write(self, records: Iterable[Record], directory: Path) -> Predictions:
        return write_answers(records, directory)

    def _count(
        self,
        facts: TextFacts,
        examples: Sequence[SquadQuestion],
        queries: Sequence[list[int]],
        documents: Mapping[str, Pieces],
    ) -> None:
        """Count what the user should know of these questions and contexts."""
        facts.read(self.tokenizer, [example.question for example in examples], queries)
        facts.read(self.tokenizer, list(documents), [each.ids.tolist() for each in documents.values()])
        cut = sum(len(query) > self.max_query_len for query in queries)
        facts.shortened("questions", cut, len(queries), f"max_query_len (now {self.max_query_len})")
        facts.window = min(self._room(query[: self.max_query_len]) for query in queries)
        if self.doc_stride > facts.window:
            facts.gaps += sum(len(document) > facts.window for document in documents.values())


def _answer_span(example: SquadQuestion, document: Pieces) -> TokenSpan | None:
    """The tokens that hold the characters of the example's first answer; None without answers."""
    if not example.answers:
        return None
    answer = example.answers[0]
    if answer.start is None:
        raise DataError(f"{example.place}: the answer {answer.text!r} has no answer_start")
    first = int(np.searchsorted(document.ends, answer.start, side="right"))
    last = int(np.searchsorted(document.starts, answer.start + len(answer.text))) - 1
    if first > last:
        raise DataError(f"{example.place}: the answer {answer.text!r} has no word in it")
    return TokenSpan(first, last)


def _listed(ids: Sequence[str], total: int) -> str:
    """The ids, and a sign that there are more."""
    return ", ".join(map(repr, ids)) + (", …" if total > len(ids) else "")


def _holds(window: Window, answer: TokenSpan) -> bool:
    return window.start <= answer.first and answer.last < window.start + window.length
