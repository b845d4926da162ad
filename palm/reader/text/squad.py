"""Questions about contexts in SQuAD's JSON form, checked while they are read."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from palm.core.errors import DataError
from palm.reader.text.json_stream import list_elements

_PARSED = {"question", "context", "id"}
_KINDS = {list: "a list", str: "a string", int: "a whole number", (str, int): "a string"}


@dataclass(frozen=True, slots=True)
class Answer:
    """A piece of the context.

    Args:
        text: its characters.
        start: where in the context it begins, in characters.
    """

    text: str
    start: int


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


def read_questions(path: Path) -> Iterator[SquadQuestion]:
    """The questions of a file, lazily, one article in memory at a time.

    Raises:
        DataError: not JSON, not of SQuAD's form, or an id twice.
    """
    seen: set[str] = set()
    for number, article in enumerate(list_elements(path, "data"), start=1):
        for question in _questions_of(article, f"{path}: article {number}", path):
            if question.id in seen:
                raise DataError(f"{question.place}: a question of this id came before; ids must be unique")
            seen.add(question.id)
            yield question
    if not seen:
        raise DataError(f"{path}: the file has no questions")


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
            raise DataError(f"{place}: expected {form}, not {_shortened(text)}")
        name = str(text.get("id", number))
        if name in seen:
            raise DataError(f"{place}: a question of the id {name!r} came before; ids must be unique")
        seen.add(name)
        yield SquadQuestion(name, _text(text, "question", place), _text(text, "context", place), (), place)


def answerable(question: SquadQuestion) -> SquadQuestion:
    """The question with the answers that stand where the file says.

    Raises:
        DataError: there is none; with what stands there instead.
    """
    if not question.answers:
        raise DataError(f"{question.place}: no answers; training needs one for every question")
    context = question.context
    standing = tuple(
        answer
        for answer in question.answers
        if answer.text and answer.start >= 0 and context.startswith(answer.text, answer.start)
    )
    if standing:
        return replace(question, answers=standing)
    text, start = question.answers[0].text, question.answers[0].start
    if not text:
        raise DataError(f"{question.place}: the answer is empty")
    there = context[max(0, start) :][: len(text)]
    elsewhere = context.find(text)
    hint = f"it stands at {elsewhere}" if elsewhere >= 0 else "the context does not contain it"
    raise DataError(
        f"{question.place}: the answer {text!r} should stand at {start}, where there is {there!r}; {hint}"
    )


def _questions_of(article: Any, place: str, path: Path) -> Iterator[SquadQuestion]:
    for number, paragraph in enumerate(_field(article, "paragraphs", list, place), start=1):
        where = f"{place}, paragraph {number}"
        context = _text(paragraph, "context", where)
        for qa in _field(paragraph, "qas", list, where):
            name = str(_field(qa, "id", (str, int), where))
            asked = f"{path}: question {name!r}"
            text = _text(qa, "question", asked)
            given = [] if qa.get("answers") is None else _field(qa, "answers", list, asked)
            answers = tuple(
                Answer(_field(answer, "text", str, asked), _field(answer, "answer_start", int, asked))
                for answer in given
            )
            yield SquadQuestion(name, text, context, answers, asked)


def _text(owner: Any, name: str, place: str) -> str:
    text: str = _field(owner, name, str, place)
    if not text.strip():
        raise DataError(f"{place}: the {name} is empty")
    return text


def _field(owner: Any, name: str, kind: type | tuple[type, ...], place: str) -> Any:
    if not isinstance(owner, dict):
        raise DataError(f"{place}: expected an object with {name!r}, not {_shortened(owner)}")
    if name not in owner:
        raise DataError(f"{place}: no {name!r}; there is {', '.join(map(repr, owner)) or 'nothing'}")
    if not isinstance(owner[name], kind):
        raise DataError(f"{place}: {name!r} should be {_KINDS[kind]}, not {_shortened(owner[name])}")
    return owner[name]


def _shortened(value: object) -> str:
    text = repr(value)
    return text if len(text) <= 40 else text[:40] + "…"
