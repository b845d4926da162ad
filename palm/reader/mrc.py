"""The `mrc` reader: questions about contexts of any length, which are cut into overlapping windows."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import KW_ONLY, dataclass
from itertools import count, islice
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import numpy.typing as npt
import torch

from palm.core.component import PositiveInt
from palm.core.errors import ConfigError, DataError, shortened
from palm.core.saved import NO_LABEL, Tensors
from palm.reader.base import READERS, Draw
from palm.reader.predictions import Predictions, Record, write_answers
from palm.reader.rows import ONE_PER_ROW, SEQUENCE_ATTR, BadRow, Column, Ints, Rows
from palm.reader.squad import AnswerPart, SquadQuestion, answerable, question_of
from palm.reader.tables.columns import TableRow, cut, is_missing
from palm.reader.tables.files import TableFormat, files_of, format_of, table_of
from palm.reader.tokenizer import Tokens
from palm.reader.tokenizing import TokenizingReader, best_context, windows_of

Span = tuple[int, int, float, float]
"""First character, end character (exclusive), start logit and end logit."""


@dataclass(frozen=True)
class ContextWindow:
    """The tokens of one window.

    Args:
        first: the column of its first token in the row.
        char_starts: the start of every token in the context, in characters, int[tokens].
        char_ends: the end of every token, exclusive, int[tokens].
        best: True for tokens that have no more context in any other window, bool[tokens].
    """

    first: int
    char_starts: Ints
    char_ends: Ints
    best: npt.NDArray[np.bool_]


def best_answers(
    context: str,
    windows: Sequence[ContextWindow],
    spans: Sequence[Sequence[Any]],
    n_best_size: int,
    null: tuple[float, float] | None = None,
) -> list[Record]:
    """The `n_best_size` best distinct answers, best first, with probabilities that sum to 1.

    A span is valid if it lies in the context and starts at a token for which this window is the best.

    Args:
        context: the text that the windows were cut from.
        windows: the windows of one question, in order.
        spans: the candidates of every window (start column, end column, start logit, end logit).
        n_best_size: the number of answers to keep.
        null: the start and end logit of "no answer"; if given, an empty text is always one of the answers,
            even in excess of `n_best_size`.

    Returns:
        `text`, `probability`, `start_logit`, `end_logit` and `start`, its first character, of each; one empty
        text if no span is valid.

    Source: Devlin et al., 2018, the authors' SQuAD program.
    """
    found = [
        span for window, chosen in zip(windows, spans, strict=True) for span in _valid_spans(window, chosen)
    ]
    no_answer = [] if null is None else [(0, 0, *null)]
    found += no_answer
    found.sort(key=lambda span: span[2] + span[3], reverse=True)
    answers = list(islice(_distinct(context, found), n_best_size))
    if all(answer["text"] for answer in answers):
        answers += _distinct(context, no_answer)
    answers = answers or [{"text": "", "start_logit": 0.0, "end_logit": 0.0, "start": 0}]
    scores = [answer["start_logit"] + answer["end_logit"] for answer in answers]
    weights = [math.exp(score - max(scores)) for score in scores]
    return [
        {"text": answer["text"], "probability": weight / sum(weights), **answer}
        for answer, weight in zip(answers, weights, strict=True)
    ]


def null_odds(nbest: Sequence[Record], null: tuple[float, float]) -> float:
    """The score of "no answer" minus that of the best answer.

    Source: Devlin et al., 2018, the authors' program for SQuAD 2.0 (`null_odds`).
    """
    scores = (answer["start_logit"] + answer["end_logit"] for answer in nbest if answer["text"])
    return float(sum(null) - max(scores, default=0.0))


def _valid_spans(window: ContextWindow, spans: Iterable[Sequence[Any]]) -> Iterator[Span]:
    length = len(window.best)
    for start_column, end_column, start_logit, end_logit in spans:
        start = start_column - window.first
        end = end_column - window.first
        if 0 <= start <= end < length and window.best[start]:
            first = int(window.char_starts[start])
            last = int(window.char_ends[end])
            if first < last:  # a space may be a token
                yield first, last, start_logit, end_logit


def _distinct(context: str, spans: Iterable[Span]) -> Iterator[Record]:
    seen = set()
    for start, end, start_logit, end_logit in spans:
        text = context[start:end]
        if text not in seen:
            seen.add(text)
            yield {"text": text, "start_logit": start_logit, "end_logit": end_logit, "start": start}


FIRST_UNIQUE_ID = 1000000000

N_BEST_SIZE = 20
"""Answers per question in `nbest_predictions.json`, unless the head sets `n_best_size`."""

SHOWN_IDS = 3
"""The most ids shown in a message."""

_PARSED = {"question", "context", "id"}
_SCALARS = ("example", "first_segment", "window_start")
_RAGGED = ("token_ids", "char_starts", "char_ends")
_POSITIONS = ("start_positions", "end_positions")

NOWHERE = range(-1, -1)
"""The tokens of an answer that no window contains, as its place in the context is not known."""


@READERS.register("mrc")
@dataclass(eq=False, repr=False)
class MRCReader(TokenizingReader):
    """Reader of SQuAD's JSON: contexts, questions, and answers that are substrings of the context.

    A row is `[CLS] question [SEP] window [SEP]`; a context that does not fit is cut into overlapping windows.
    In training, every question needs an answer, and windows without the whole answer are left out, unless
    `remove_noanswer` is off. Predicted answers are exact substrings of the context. A record is
    `{"id": "q1", "text": "Rome", "nbest": [{"text", "probability", "start_logit", "end_logit"}, ...]}`, with
    `null_odds` if the head allows for no answer, and `start`, the character of the context where an answer
    begins.

    Args:
        max_query_len: the most tokens kept of a question.
        doc_stride: tokens from the start of one window to the start of the next.
        for_cn: accepted for PaddlePALM's files; it has no effect, because answers are substrings of the
            context.
        remove_noanswer: train only on windows with the answer; otherwise on all windows, and on questions
            without an answer, with `[CLS]` as the answer.

    Raises:
        ConfigError: a setting out of its range, or not enough room for a context.
        DataError: the vocabulary cannot be read.

    Source: PaddlePALM 0.2.1, appendix A, `mrc`; Devlin et al., 2018, the authors' SQuAD program.
    """

    cacheable = True
    known_columns = ("id", "question", "context", "answers", "answer_start")
    optional_columns = known_columns
    split_by = ("context",)
    ignored_settings: ClassVar[dict[str, str]] = {"for_cn": "answers are substrings of the context"}

    max_query_len: PositiveInt
    doc_stride: PositiveInt
    _: KW_ONLY
    remove_noanswer: bool = True

    def __post_init__(self) -> None:
        super().__post_init__()
        self.num_special = 2 + self.tokenizer.separators
        least = self.max_query_len + self.num_special + 1
        if self.max_seq_len < least:
            raise ConfigError(
                f"max_seq_len {self.max_seq_len!r} leaves no room for a context: it should be at least "
                f"{least}, for max_query_len {self.max_query_len!r} and {self.num_special} special tokens"
            )
        self.outputs_attr = {**SEQUENCE_ATTR, "unique_ids": ONE_PER_ROW}
        self.targets_attr = {"start_positions": ONE_PER_ROW, "end_positions": ONE_PER_ROW}
        self.gold_names = ("answers",)

    def read(self, path: Path, with_targets: bool) -> Iterator[SquadQuestion]:
        return self._questions(path, "positions" if with_targets else "none")

    def read_gold(self, path: Path) -> Iterator[SquadQuestion]:
        """Every question with the texts of all its answers, if any, regardless of their positions."""
        return self._questions(path, "texts")

    def _questions(self, path: Path, answers: AnswerPart) -> Iterator[SquadQuestion]:
        """The questions of a file; for training and evaluation, rows of a table need an answer."""
        with_targets = answers != "none"
        wants_answers = with_targets and self.table_format(path, self.format) != "squad"
        numbers = count(1)
        seen: set[str] = set()

        def example(row: TableRow) -> SquadQuestion | None:
            number = next(numbers)
            if wants_answers and is_missing(row.cells["answers"]):
                return None
            question = question_of(row, number, answers)
            if with_targets:
                check_unique(question.id, row.place, seen)
            if answers != "positions" or not (question.answers or self.remove_noanswer):
                return question
            return answerable(question)

        columns = ("question", "context", "answers") if wants_answers else ("question", "context")
        for question in self.table_examples(path, with_targets, columns, example):
            if not with_targets:  # a file with two answers for an id cannot be written
                check_unique(question.id, getattr(question, "place", str(path)), seen)
            yield question

    @classmethod
    def table_format(cls, path: Path, named: TableFormat | None) -> TableFormat | None:
        first = files_of(table_of(Path(path)))[0]
        return format_of(first) or (named if named is not None and ".json" not in first.suffixes else "squad")

    def gold(self, example: SquadQuestion) -> Record:
        return {"id": example.id, "answers": [answer.text for answer in example.answers]}

    def parse(self, texts: Iterable[Any]) -> Iterator[SquadQuestion]:
        seen: set[str] = set()
        for number, text in enumerate(texts):
            place = f"text {number}"
            if isinstance(text, (tuple, list)) and len(text) == 2:
                text = {"question": text[0], "context": text[1]}
            if not isinstance(text, dict) or not {"question", "context"} <= text.keys() <= _PARSED:
                form = "(question, context) or {'question': …, 'context': …} (and 'id')"
                raise DataError(f"{place}: expected {form}, not {cut(repr(text), 40)}")
            question = question_of(TableRow(text, place), number, "none")
            check_unique(question.id, place, seen)
            yield question

    def encode(self, examples: Sequence[SquadQuestion], with_targets: bool) -> Rows:
        queries = self.tokenizer.encode([each.question for each in examples], self.max_query_len)
        # A context of SQuAD has nearly five questions, for which it is tokenized only once.
        contexts = list(dict.fromkeys(example.context for example in examples))
        documents = dict(zip(contexts, self.tokenizer.encode_with_offsets(contexts), strict=True))
        if self.facts is not None:
            self.facts.add_texts(self.tokenizer, [each.question for each in examples], queries)
            ids = [each.ids.tolist() for each in documents.values()]
            self.facts.add_texts(self.tokenizer, contexts, ids)
            num_cut = sum(len(query) > self.max_query_len for query in queries)
            setting = f"max_query_len (now {self.max_query_len})"
            self.facts.add_cut("questions", num_cut, len(queries), setting)
        found: list[dict[str, Any]] = []
        left_out = []
        for index, example in enumerate(examples):
            document = documents[example.context]
            try:
                answer = _answer_span(example, document) if with_targets else None
            except DataError as error:
                self.refuse([error])
                continue
            query = queries[index][: self.max_query_len]
            room = self.max_seq_len - len(query) - self.num_special
            windows = windows_of(len(document), room, self.doc_stride)
            if answer is not None and self.remove_noanswer and not example.is_scored:
                windows = [window for window in windows if _contains(window, answer)]
            found += [{"example": index, **self._row(query, document, each, answer)} for each in windows]
            if not windows:
                left_out.append(example.id)
        if left_out:
            self.warn_once(
                f"{len(left_out)} of {len(examples)} questions are left out of training, because no window "
                f"contains their whole answer: {', '.join(shortened([*map(repr, left_out)], SHOWN_IDS))}; "
                "raise max_seq_len or lower doc_stride"
            )
        return _encoded(found, (*_SCALARS, *_POSITIONS) if with_targets else _SCALARS)

    def _row(self, query: list[int], document: Tokens, window: range, answer: range | None) -> dict[str, Any]:
        tokens = slice(window.start, window.stop)
        first = len(query) + self.num_special - 1  # the column where the window starts
        row = {
            "token_ids": self.tokenizer.row(query, document.ids[tokens].tolist()),
            "first_segment": first,
            "window_start": window.start,
            "char_starts": document.starts[tokens],
            "char_ends": document.ends[tokens],
        }
        if answer is None or not _contains(window, answer):
            has_loss = not self.remove_noanswer and answer != NOWHERE
            return row | dict.fromkeys(_POSITIONS, 0 if has_loss else NO_LABEL)  # `[CLS]` is no answer
        shift = first - window.start
        return row | {"start_positions": answer.start + shift, "end_positions": answer[-1] + shift}

    def collate(self, rows: Rows, indices: Sequence[int], draw: Draw) -> Tensors:
        batch = super().collate(rows, indices, draw)
        batch["unique_ids"] = FIRST_UNIQUE_ID + torch.as_tensor(indices, dtype=torch.long)
        return batch

    def records(self, examples: Sequence[Any], *rest: Any, **about: Any) -> Iterator[Record]:
        for example, record in zip(examples, super().records(examples, *rest, **about), strict=True):
            del record["index"]  # a question has an id instead
            yield {"id": example.id, "text": "", **record} if isinstance(example, BadRow) else record

    def record(self, example: SquadQuestion, rows: Rows, places: range, decoded: Sequence[Record]) -> Record:
        starts = [int(rows["window_start"][k]) for k in places]
        ends = [start + len(rows["char_starts"][k]) for start, k in zip(starts, places, strict=True)]
        windows = [
            ContextWindow(int(rows["first_segment"][k]), rows["char_starts"][k], rows["char_ends"][k], best)
            for k, best in zip(places, best_context(list(map(range, starts, ends))), strict=True)
        ]
        spans = [value["spans"] for value in decoded]
        null = min((tuple(value["null"]) for value in decoded if "null" in value), key=sum, default=None)
        n_best_size = decoded[0].get("n_best_size", N_BEST_SIZE)
        nbest = best_answers(example.context, windows, spans, n_best_size, null)
        record = {"id": example.id, "text": nbest[0]["text"], "nbest": nbest}
        if null is not None:
            record["null_odds"] = null_odds(nbest, null)
            best_text = next((answer["text"] for answer in nbest if answer["text"]), "")
            record["text"] = "" if record["null_odds"] > decoded[0]["null_threshold"] else best_text
        characters = {answer["text"]: answer.pop("start") for answer in nbest}  # PaddlePALM's file has none
        return record | ({"start": characters[record["text"]]} if record["text"] else {})

    def write(self, records: Iterable[Record], directory: Path) -> Predictions:
        return write_answers(records, directory)


def _encoded(rows: Sequence[Mapping[str, Any]], scalars: Sequence[str]) -> Rows:
    columns = {name: Column.scalar([row[name] for row in rows]) for name in scalars}
    return Rows(columns | {name: Column.ragged([row[name] for row in rows]) for name in _RAGGED})


def _answer_span(example: SquadQuestion, document: Tokens) -> range | None:
    """The range of tokens that covers the example's first answer in its place; None without answers."""
    if not example.answers:
        return None
    answer = next((answer for answer in example.answers if answer.is_in(example.context)), None)
    if answer is None or answer.start is None:
        return NOWHERE
    first = int(np.searchsorted(document.ends, answer.start, side="right"))
    tokens = range(first, int(np.searchsorted(document.starts, answer.start + len(answer.text))))
    if not tokens and not example.is_scored:
        raise DataError(f"{example.place}: the answer {answer.text!r} contains no word")
    return tokens or NOWHERE


def check_unique(name: str, place: str, seen: set[str]) -> None:
    """Add the id of a question to `seen`.

    Raises:
        DataError: it is already there.
    """
    if name in seen:
        raise DataError(f"{place}: an earlier question has the id {name!r}; ids must be unique")
    seen.add(name)


def _contains(window: range, answer: range) -> bool:
    return window.start <= answer.start and answer.stop <= window.stop
