"""Questions about contexts in SQuAD's JSON form, checked while they are read."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal, NamedTuple

from palm.core.errors import DataError
from palm.reader.tables.record import Refuse, TableRow, cut, is_missing
from palm.reader.text.bad_rows import MendableError
from palm.reader.text.json_stream import list_elements

SHOWN_IDS = 3
"""How many ids a message shows."""

_PARSED = {"question", "context", "id"}
_KINDS = {list: "a list", str: "a string", int: "a whole number", (str, int): "a string"}


@dataclass(frozen=True, slots=True)
class Answer:
    """A piece of the context.

    Args:
        text: its characters.
        start: its position in the context, in characters; None where the file does not say.
    """

    text: str
    start: int | None


@dataclass(frozen=True, slots=True)
class SquadQuestion:
    """One question about one context.

    Args:
        id: its id in the file.
        question: its text.
        context: the text that holds the answer.
        answers: those that the file gives; may be none.
        place: the file and the id, for messages.
    """

    id: str
    question: str
    context: str
    answers: tuple[Answer, ...]
    place: str


class QuestionPart(NamedTuple):
    """A question as the file has it, its context and the place of the paragraph, or of the table's row."""

    qa: Any
    context: Any
    place: str
    is_row: bool = False


class SquadFile:
    """Reads the questions of one file, one article in memory at a time.

    Args:
        path: the file.
        answers: the needed part of them: their positions too ('positions'), their texts ('texts'), or
            nothing. No other part is checked, and only for training must question and context have text.

    Attributes:
        empty: ids of the first questions whose text or context is empty, where they may be.
        num_empty: how many there were.
    """

    def __init__(self, path: Path, answers: Literal["positions", "texts", "none"]) -> None:
        self.path = path
        self.answers = answers
        self.empty: list[str] = []
        self.num_empty = 0
        self._seen: set[str] = set()

    def parts(self, refuse: Refuse) -> Iterator[QuestionPart]:
        """The file's questions before they are checked, lazily.

        Args:
            refuse: called with the problem with an article or a paragraph, which is left out.

        Raises:
            DataError: not JSON, or no questions.
        """
        count = 0

        def left_out(error: DataError) -> None:
            nonlocal count
            count += 1
            refuse(error)

        for number, article in enumerate(list_elements(self.path, "data"), start=1):
            place = f"{self.path}: article {number}"
            for paragraph, where in _parts(article, "paragraphs", place, "paragraph", left_out):
                try:
                    context = _field(paragraph, "context", str, where)
                except DataError as error:
                    left_out(error)
                    continue
                for qa, _ in _parts(paragraph, "qas", where, "question", left_out):
                    count += 1
                    yield QuestionPart(qa, context, where)
        if not count:
            raise DataError(f"{self.path}: the file has no questions")

    def question(self, part: QuestionPart) -> SquadQuestion:
        """The question of a part.

        Raises:
            DataError: not of SQuAD's form, a repeated id, or an empty text; with the question's id.
        """
        name = str(_field(part.qa, "id", (str, int), part.place))
        place = part.place if part.is_row else f"{self.path}: question {name!r}"
        if name in self._seen:
            raise DataError(f"{place}: a question of this id came before; ids must be unique")
        self._seen.add(name)
        if self.answers == "positions":
            _check_not_empty(part.context, "context", part.place)
        text = _field(part.qa, "question", str, place)
        if self.answers == "positions":
            _check_not_empty(text, "question", place)
        elif not text.strip() or not part.context.strip():
            self.num_empty += 1
            self.empty += [name] if len(self.empty) < SHOWN_IDS else []
        return SquadQuestion(name, text, part.context, self._answers(part.qa, place), place)

    def _answers(self, qa: Any, place: str) -> tuple[Answer, ...]:
        if self.answers == "none" or qa.get("answers") is None:
            return ()
        answers = []
        for answer in _field(qa, "answers", list, place):
            text = _field(answer, "text", str, place)
            start = answer.get("answer_start")
            if self.answers == "positions" and start is not None:
                start = _field(answer, "answer_start", int, place)
            answers.append(Answer(text, start))
        return tuple(answers)


def row_part(row: TableRow, number: int) -> QuestionPart:
    """The part that a table's row is; its number is the id of a question without one.

    Raises:
        DataError: the context is no text.
    """
    cells = dict(row.cells)
    qa = {"id": number, **cells, "answers": _answer_list(cells.get("answers"), cells.get("answer_start"))}
    return QuestionPart(qa, _field(cells, "context", str, row.place), row.place, is_row=True)


def _answer_list(answers: Any, start: Any) -> Any:
    """The answers of a row in SQuAD's form: from texts, or from a list of texts and one of positions."""
    if isinstance(answers, Mapping) and isinstance(answers.get("text"), list):
        texts = answers["text"]
        starts = answers.get("answer_start") or [None] * len(texts)
        return [{"text": text, "answer_start": at} for text, at in zip(texts, starts, strict=False)]
    if isinstance(answers, list):
        return [{"text": answer} if isinstance(answer, str) else answer for answer in answers]
    if is_missing(answers):
        return None
    at = int(start) if isinstance(start, str) and start.isdecimal() else start
    return [{"text": answers, "answer_start": at}]


def _parts(owner: Any, key: str, place: str, noun: str, refuse: Refuse) -> Iterator[tuple[Any, str]]:
    """The elements of a list in a file, each with its place."""
    try:
        parts = _field(owner, key, list, place)
    except DataError as error:
        refuse(error)
        return
    for number, part in enumerate(parts, start=1):
        yield part, f"{place}, {noun} {number}"


def parsed_questions(texts: Iterable[Any]) -> Iterator[SquadQuestion]:
    """Questions from Python values: `(question, context)`, or dicts with these names and perhaps an `id`.

    Raises:
        DataError: a value of another form, an empty text, or an id twice.
    """
    seen: set[str] = set()
    for number, text in enumerate(texts):
        place = f"text {number}"
        if isinstance(text, (tuple, list)) and len(text) == 2:
            text = {"question": text[0], "context": text[1]}
        if not isinstance(text, dict) or not {"question", "context"} <= text.keys() <= _PARSED:
            form = "(question, context) or {'question': …, 'context': …} (and 'id')"
            raise DataError(f"{place}: expected {form}, not {cut(repr(text), 40)}")
        name = str(text.get("id", number))
        if name in seen:
            raise DataError(f"{place}: a question of the id {name!r} came before; ids must be unique")
        seen.add(name)
        for key in ("question", "context"):
            _check_not_empty(_field(text, key, str, place), key, place)
        yield SquadQuestion(name, text["question"], text["context"], (), place)


def answerable(question: SquadQuestion) -> SquadQuestion:
    """The question with the answers that are at the position that the file gives.

    Raises:
        DataError: there is none; with the text at that position.
        MendableError: the text of one is elsewhere: at one place, or nearest to its position.
    """
    if not question.answers:
        raise DataError(
            f"{question.place}: no answers; training needs one for every question, or "
            "remove_noanswer: False, as for SQuAD 2.0"
        )
    context = question.context
    in_place = tuple(
        answer
        for answer in question.answers
        if answer.text and answer.start is not None and answer.start >= 0
        if context.startswith(answer.text, answer.start)
    )
    if in_place:
        return replace(question, answers=in_place)
    text = question.answers[0].text
    start = question.answers[0].start
    if not text:
        raise DataError(f"{question.place}: the answer is empty")
    elsewhere = places_of(text, context)
    hint = f"it is at {elsewhere[0]}" if elsewhere else "the context does not contain it"
    wrong = f"{question.place}: the answer {text!r} "
    if start is None:
        wrong += f"has no answer_start; {hint}"
    else:
        wrong += f"should be at {start}, where there is {context[max(0, start) :][: len(text)]!r}; {hint}"
    if not elsewhere or (start is None and len(elsewhere) > 1):
        raise DataError(wrong)
    place = min(elsewhere, key=lambda position: abs(position - (start or 0)))
    mended = replace(question, answers=(Answer(text, place),))
    raise MendableError(wrong, mended, f"answer_start {start} -> {place}")


def places_of(text: str, context: str) -> list[int]:
    """The positions of a text in a context, ascending; they may overlap."""
    return [match.start() for match in re.finditer(f"(?={re.escape(text)})", context)]


def _check_not_empty(text: str, name: str, place: str) -> None:
    if not text.strip():
        raise DataError(f"{place}: the {name} is empty")


def _field(owner: Any, name: str, kind: type | tuple[type, ...], place: str) -> Any:
    if not isinstance(owner, dict):
        raise DataError(f"{place}: expected an object with {name!r}, not {cut(repr(owner), 40)}")
    if name not in owner:
        raise DataError(f"{place}: no {name!r}; there is {', '.join(map(repr, owner)) or 'nothing'}")
    if not isinstance(owner[name], kind):
        raise DataError(f"{place}: {name!r} should be {_KINDS[kind]}, not {cut(repr(owner[name]), 40)}")
    return owner[name]
