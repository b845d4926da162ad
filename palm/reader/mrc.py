"""The `mrc` reader: questions about contexts of any length, cut into windows and put together again."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any, ClassVar, NamedTuple

import numpy as np
import torch

from palm.config import FilePath
from palm.core.errors import ConfigError, DataError
from palm.core.tensor_specs import Tensors
from palm.reader.answers import ContextWindow, best_answers, null_odds
from palm.reader.base import READERS, Draw, Reader
from palm.reader.predictions import Predictions, Record, write_answers
from palm.reader.rows.collate import ONE_PER_ROW, SEQUENCE_ATTR, padded_batch, row_values
from palm.reader.rows.facts import TextFacts
from palm.reader.rows.rows import Column, Ints, Rows
from palm.reader.text.bad_rows import OnBadRow
from palm.reader.text.squad import (
    QuestionMaker,
    QuestionPart,
    SquadQuestion,
    answerable,
    parsed_questions,
    question_parts,
)
from palm.reader.text.subwords import load_tokenizer
from palm.reader.text.tokenizer import Pieces
from palm.reader.text.windows import Window, best_context, windows_of

FIRST_UNIQUE_ID = 1000000000

log = logging.getLogger("palm")


class _Span(NamedTuple):
    """The tokens of an answer in its document, both ends included."""

    first: int
    last: int


class _WindowRow(NamedTuple):
    """One row before it is laid into columns."""

    example: int
    query: list[int]
    document: Pieces
    window: Window
    answer: _Span | None


@READERS.register("mrc")
class MRCReader(Reader):
    """Reads SQuAD's JSON: contexts, questions, and answers as pieces of the context.

    A row is `[CLS] question [SEP] window [SEP]`; a context that does not fit is cut into windows that
    overlap. For training every question needs an answer, and windows without the whole answer are left
    out, unless `remove_noanswer` is off. Predicted answers are pieces of the context, character by
    character. A record is `{"id": "q1", "text": "Rome", "nbest": [{"text", "probability",
    "start_logit", "end_logit"}, ...]}`, with `null_odds` where the head reckons with no answer.

    Args:
        vocab_path: the vocabulary: one token a line, or RoBERTa's `vocab.json` with `merges.txt` beside
            it, or a `tokenizer.json`.
        max_seq_len: the longest row in tokens, special tokens included.
        max_query_len: tokens of the question that are kept.
        doc_stride: tokens from the beginning of one window to that of the next.
        do_lower_case: lower-case the texts and strip accents, as an uncased vocabulary needs it; a
            vocabulary in a JSON file does so by itself.
        for_cn: accepted, changes nothing: Chinese characters stand alone in any case.
        task_id: the number that ERNIE's task embedding gets.
        n_best_size: how many answers a question has in `nbest_predictions.json`.
        remove_noanswer: train only on windows with the answer; otherwise on all of them, and on
            questions without an answer, with `[CLS]` for the answer.
        on_bad_row: rows to train or evaluate on that cannot be used: error refuses the file, with all of
            them; skip leaves them out; repair mends what has one obvious mend and leaves out the others.

    Raises:
        ConfigError: a setting out of its range, or no room for a context.
        DataError: the vocabulary cannot be read.

    Source: PaddlePALM 0.2.1, appendix A, `mrc`; Devlin et al., 2018, the authors' SQuAD program.
    """

    cacheable = True
    aliases: ClassVar[dict[str, str]] = {"max_len": "max_seq_len", "max_seqlen": "max_seq_len"}
    order_2x = (
        *("vocab_path", "max_seq_len", "max_query_len", "doc_stride"),
        *("tokenizer", "lang", "seed", "do_lower_case", "remove_noanswer", "phase"),
    )

    def __init__(
        self,
        vocab_path: FilePath,
        max_seq_len: int,
        max_query_len: int,
        doc_stride: int,
        *,
        do_lower_case: bool = False,
        for_cn: bool = False,  # noqa: ARG002
        task_id: int = 0,
        n_best_size: int = 20,
        remove_noanswer: bool = True,
        on_bad_row: OnBadRow = "error",
    ) -> None:
        self.vocab_path = Path(vocab_path)
        self.tokenizer = load_tokenizer(self.vocab_path, do_lower_case)
        self.num_special = 2 + self.tokenizer.separators
        counts = {"max_query_len": max_query_len, "doc_stride": doc_stride, "n_best_size": n_best_size}
        problems = [f"{name} should be at least 1, not {n!r}" for name, n in counts.items() if n < 1]
        least = max_query_len + self.num_special + 1
        if max_seq_len < least:
            problems.append(
                f"max_seq_len {max_seq_len!r} leaves no room for a context: it should be at least {least}, "
                f"for max_query_len {max_query_len!r} and {self.num_special} special tokens"
            )
        if problems:
            raise ConfigError(problems)
        self.deal_with_bad_rows(on_bad_row)
        self.vocab_size = self.tokenizer.vocab_size
        self.max_seq_len = max_seq_len
        self.max_query_len = max_query_len
        self.doc_stride = doc_stride
        self.task_id = task_id
        self.n_best_size = n_best_size
        self.remove_noanswer = remove_noanswer
        self.outputs_attr = {**SEQUENCE_ATTR, "unique_ids": ONE_PER_ROW}
        self.targets_attr = {"start_positions": ONE_PER_ROW, "end_positions": ONE_PER_ROW}
        self.truth_names = ("answers",)

    def read(self, path: Path, with_targets: bool) -> Iterator[SquadQuestion]:
        yield from self._questions(QuestionMaker(Path(path), "standing" if with_targets else "none"))

    def read_true(self, path: Path) -> Iterator[SquadQuestion]:
        """Every question with the texts of all its answers, wherever they stand; one may have none."""
        yield from self._questions(QuestionMaker(Path(path), "texts"))

    def _questions(self, made: QuestionMaker) -> Iterator[SquadQuestion]:
        def example(part: QuestionPart) -> SquadQuestion:
            question = made(part)
            may_lack_answers = made.answers != "standing" or not (question.answers or self.remove_noanswer)
            return question if may_lack_answers else answerable(question)

        parts = partial(question_parts, made.path)
        yield from self.examples_of(made.path, made.answers != "none", parts, example)
        if made.num_empty:
            listed = ", ".join(map(repr, made.empty)) + (", …" if made.num_empty > len(made.empty) else "")
            self.tell_once(
                f"{made.path}: questions that are empty, or whose context is: {made.num_empty} ({listed}); "
                "they are answered like the others, and their answers mean little"
            )

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
        rows: list[_WindowRow] = []
        unheld = []
        for index, example in enumerate(examples):
            document = documents[example.context]
            answer = None
            if with_targets and example.answers:
                try:
                    answer = _answer_span(example, document)
                except DataError as error:
                    self.refuse([error])
                    continue
            windows = self._rows_of(index, queries[index][: self.max_query_len], document, answer)
            if not windows:
                unheld.append(example)
            rows += windows
        if unheld:
            log.warning(
                "%d of %d questions are left out of training, their answers fit in no window: %s; "
                "raise max_seq_len or lower doc_stride",
                len(unheld),
                len(examples),
                ", ".join(repr(example.id) for example in unheld[:3]) + (", …" if len(unheld) > 3 else ""),
            )
        return self._columns(rows, with_targets)

    def collate(self, rows: Rows, indices: Sequence[int], draw: Draw) -> Tensors:  # noqa: ARG002
        batch = padded_batch(rows, indices, self.tokenizer.pad_id, self.task_id)
        batch["unique_ids"] = FIRST_UNIQUE_ID + torch.as_tensor(indices, dtype=torch.long)
        for name in self.targets_attr:
            if name in rows:
                batch[name] = row_values(rows, name, indices)
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
            indices, values = range(start, end), decoded[start:end]
            cuts = [Window(int(rows["window_start"][i]), len(rows["char_starts"][i])) for i in indices]
            windows = [
                ContextWindow(
                    int(rows["first_segment"][i]), rows["char_starts"][i], rows["char_ends"][i], best
                )
                for i, best in zip(indices, best_context(cuts), strict=True)
            ]
            spans = [value["spans"] for value in values]
            null = min((tuple(value["null"]) for value in values if "null" in value), key=sum, default=None)
            nbest = best_answers(example.context, windows, spans, self.n_best_size, null)
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
        """What the user should know of these questions and contexts."""
        facts.read(self.tokenizer, [example.question for example in examples], queries)
        facts.read(self.tokenizer, list(documents), [each.ids.tolist() for each in documents.values()])
        cut = sum(len(query) > self.max_query_len for query in queries)
        facts.shortened("questions", cut, len(queries), f"max_query_len (now {self.max_query_len})")
        longest = max(min(len(query), self.max_query_len) for query in queries)
        facts.window = self.max_seq_len - longest - self.num_special
        if self.doc_stride > facts.window:
            facts.gaps += sum(len(document) > facts.window for document in documents.values())

    def _rows_of(
        self, example: int, query: list[int], document: Pieces, answer: _Span | None
    ) -> list[_WindowRow]:
        capacity = self.max_seq_len - len(query) - self.num_special
        return [
            _WindowRow(example, query, document, window, _held(window, answer))
            for window in windows_of(len(document), capacity, self.doc_stride)
            if answer is None or not self.remove_noanswer or _held(window, answer)
        ]

    def _columns(self, rows: Sequence[_WindowRow], with_targets: bool) -> Rows:
        cls_id, sep_id = self.tokenizer.cls_id, self.tokenizer.sep_id
        between = self.tokenizer.between
        token_ids = [
            [cls_id, *row.query, *between, *_cut(row.document.ids, row.window).tolist(), sep_id]
            for row in rows
        ]
        firsts = [len(row.query) + self.num_special - 1 for row in rows]  # the columns where windows begin
        columns = {
            "token_ids": Column.ragged(token_ids),
            "first_segment": Column.scalar(firsts),
            "example": Column.scalar([row.example for row in rows]),
            "window_start": Column.scalar([row.window.start for row in rows]),
            "char_starts": Column.ragged([_cut(row.document.starts, row.window) for row in rows]),
            "char_ends": Column.ragged([_cut(row.document.ends, row.window) for row in rows]),
        }
        if with_targets:
            for end, name in enumerate(("start_positions", "end_positions")):
                positions = [  # `[CLS]` where there is no answer
                    0 if row.answer is None else row.answer[end] - row.window.start + first
                    for row, first in zip(rows, firsts, strict=True)
                ]
                columns[name] = Column.scalar(positions)
        return Rows(columns)


def _answer_span(example: SquadQuestion, document: Pieces) -> _Span:
    """The tokens that hold the characters of the example's first answer."""
    answer = example.answers[0]
    if answer.start is None:
        raise DataError(f"{example.place}: the answer {answer.text!r} has no answer_start")
    first = int(np.searchsorted(document.ends, answer.start, side="right"))
    last = int(np.searchsorted(document.starts, answer.start + len(answer.text))) - 1
    if first > last:
        raise DataError(f"{example.place}: the answer {answer.text!r} has no word in it")
    return _Span(first, last)


def _held(window: Window, answer: _Span | None) -> _Span | None:
    """The answer, if the window has all of it."""
    if answer is None or answer.first < window.start or answer.last >= window.start + window.length:
        return None
    return answer


def _cut(values: Ints, window: Window) -> Ints:
    return values[window.start : window.start + window.length]
