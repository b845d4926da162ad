"""Files in SQuAD's format."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal

from palm.core.errors import DataError
from palm.core.io import describe_error, parse_json
from palm.reader.tables.columns import OnHeader, TableRow, cut, is_missing
from palm.reader.tables.files import content_of

AnswerPart = Literal["positions", "texts", "none"]
"""The part of the answers to read and check: texts and positions, texts, or nothing."""


@dataclass(frozen=True, slots=True)
class Answer:
    """A substring of the context.

    Args:
        text: the text of the answer.
        start: its position in the context, in characters; None if the file does not have it.
    """

    text: str
    start: int | None

    def is_in(self, context: str) -> bool:
        """Check that the context has the text at this position."""
        has_place = self.text and self.start is not None and self.start >= 0
        return bool(has_place and context.startswith(self.text, self.start))


@dataclass(frozen=True, slots=True)
class SquadQuestion:
    """One question about one context.

    Args:
        id: its id in the file.
        question: the text of the question.
        context: the text that contains the answer.
        answers: the answers in the file, if any.
        place: the file and the id, for messages.
        is_scored: read for an evaluation, for which all windows of the context are predicted.
    """

    id: str
    question: str
    context: str
    answers: tuple[Answer, ...]
    place: str
    is_scored: bool = False


def question_of(row: TableRow, number: int, answers: AnswerPart) -> SquadQuestion:
    """Return the question of a row, with `number` as its id if the row has none.

    Args:
        row: its cells and place.
        number: its number in the file.
        answers: the part of its answers that is read.

    Raises:
        DataError: not in SQuAD's form, or an empty text; names the question's place.
    """
    place = row.place
    cells = {"id": number, **row.cells}
    name = str(field_of(cells, "id", (str, int), place))
    for key in ("context", "question"):
        if not field_of(cells, key, str, place).strip():
            raise DataError(f"{place}: the {key} is empty")
    listed = _answer_list(cells.get("answers"), cells.get("answer_start"), place)
    found = []
    if answers != "none" and listed is not None:
        for answer in field_of({"answers": listed}, "answers", list, place):
            start = answer.get("answer_start") if isinstance(answer, dict) else None
            if answers == "positions" and start is not None:
                start = field_of(answer, "answer_start", int, place)
            start = start if type(start) is int else None
            found.append(Answer(field_of(answer, "text", str, place), start))
    return SquadQuestion(name, cells["question"], cells["context"], tuple(found), place, answers == "texts")


def _answer_list(answers: Any, start: Any, place: str) -> Any:
    """The answers of a row in SQuAD's form, from texts or from a list of texts and one of positions."""
    if isinstance(answers, Mapping) and isinstance(answers.get("text"), list):
        texts = answers["text"]
        starts = answers.get("answer_start") or [None] * len(texts)
        if not isinstance(starts, list) or len(starts) != len(texts):
            raise DataError(f"{place}: answers has {len(texts)} texts; expected an answer_start for each")
        return [{"text": text, "answer_start": at} for text, at in zip(texts, starts, strict=True)]
    if isinstance(answers, list):
        return [{"text": answer} if isinstance(answer, str) else answer for answer in answers]
    if is_missing(answers):
        return None
    if not isinstance(answers, str):
        return answers
    at = int(start) if isinstance(start, str) and start.isdecimal() else start
    return [{"text": answers, "answer_start": at}]


def answerable(question: SquadQuestion) -> SquadQuestion:
    """The question with the answers whose position in the file is right.

    Raises:
        DataError: there are none; shows the text at the position of the first answer, and where it is.
    """
    if not question.answers:
        raise DataError(
            f"{question.place}: no answers; training needs one for every question, unless you set "
            "remove_noanswer: False, as for SQuAD 2.0"
        )
    context = question.context
    if in_place := tuple(answer for answer in question.answers if answer.is_in(context)):
        return replace(question, answers=in_place)
    text = question.answers[0].text
    start = question.answers[0].start
    if not text:
        raise DataError(f"{question.place}: the answer is empty")
    elsewhere = context.find(text)
    hint = "the context does not contain it" if elsewhere < 0 else f"it is at {elsewhere}"
    there = (
        "has no answer_start"
        if start is None
        else f"should be at {start}, where the context has {context[max(0, start) :][: len(text)]!r}"
    )
    raise DataError(f"{question.place}: the answer {text!r} {there}; {hint}")


Kind = type | tuple[type, ...]

_KINDS = {list: "a list", str: "a string", int: "a whole number", (str, int): "a string"}


def squad_rows(file: Path, on_header: OnHeader) -> Iterator[TableRow | DataError]:
    """The questions of a file with their contexts; the place of a question contains its id.

    A question without an id is an error in its place.

    Args:
        file: a file in SQuAD's format.
        on_header: called with the keys of the first question.

    Raises:
        DataError: not JSON, an article or paragraph of another form, or an error from `on_header`.
    """
    is_first = True
    for paragraph, place in _paragraphs(file):
        for number, qa in enumerate(field_of(paragraph, "qas", list, place), start=1):
            try:
                name = field_of(qa, "id", (str, int), f"{place}, question {number}")
            except DataError as error:
                yield error
                continue
            cells = {**qa, "context": paragraph["context"]}
            if is_first:
                on_header(list(cells), str(file), True)
                is_first = False
            yield TableRow(cells, f"{file}: question {str(name)!r}")


def _paragraphs(file: Path) -> Iterator[tuple[dict[str, Any], str]]:
    """The paragraphs of all articles, each with its place."""
    for number, article in enumerate(field_of(_content(file), "data", list, str(file)), start=1):
        place = f"{file}: article {number}"
        for paragraph_number, paragraph in enumerate(field_of(article, "paragraphs", list, place), start=1):
            inner = f"{place}, paragraph {paragraph_number}"
            field_of(paragraph, "context", str, inner)
            yield paragraph, inner


def _content(file: Path) -> Any:
    try:
        content = parse_json(content_of(file))
    except json.JSONDecodeError as error:
        hint = "; name a file with one JSON object per line .jsonl" if error.msg == "Extra data" else ""
        place = f"{file}:{error.lineno}:{error.colno}"
        raise DataError(f"{place}: not JSON: {error.msg}{hint}") from error
    except (ValueError, RecursionError) as error:
        raise DataError(f"{file}: cannot read the data file: {describe_error(error)}") from error
    if isinstance(content, list) and content:
        expected = (
            "expected an object with 'data', as in SQuAD's files; name a file of rows .jsonl, and write"
        )
        raise DataError(f"{file}: {expected} one JSON object per line, without a list around them")
    return content


def field_of(owner: Any, name: str, kind: Kind, place: str) -> Any:
    """The value of a field in a JSON object.

    Raises:
        DataError: no such field, or a value of another type.
    """
    if not isinstance(owner, dict):
        raise DataError(f"{place}: expected an object with {name!r}, not {cut(repr(owner), 40)}")
    if name not in owner:
        raise DataError(f"{place}: no {name!r}; found {', '.join(map(repr, owner)) or 'nothing'}")
    if not isinstance(owner[name], kind):
        raise DataError(f"{place}: {name!r} should be {_KINDS[kind]}, not {cut(repr(owner[name]), 40)}")
    return owner[name]
