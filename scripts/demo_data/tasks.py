"""The four tasks' data, in PALM's file formats."""

from __future__ import annotations

import json
import random
from collections.abc import Iterable, Iterator
from itertools import cycle, islice

from demo_data.passages import Article, Entity, Writer

CLASSES = ["person", "place", "time", "number"]
"""Kinds of questions in `cls4mrqa`; the label is the index."""

Row = tuple[object, ...]


def reading(writer: Writer, num_articles: int) -> str:
    """Return SQuAD JSON with two paragraphs per article and three or four questions per paragraph."""
    return _squads(writer, map(writer.article, islice(cycle(writer.topics), num_articles)))


def glimpsing(writer: Writer, num_articles: int) -> str:
    """Return SQuAD JSON with two sentences per article and a question about each, for pretraining."""
    return _squads(writer, map(writer.glimpse, islice(cycle(writer.topics), num_articles)))


def _squads(writer: Writer, articles: Iterable[Article]) -> str:
    data = [_squad(article, f"{writer.split}-{number}") for number, article in enumerate(articles, 1)]
    text = json.dumps({"version": "1.0", "data": data}, separators=(",", ":"))
    return text.replace('{"title"', '\n{"title"') + "\n"  # one article per line


def _squad(article: Article, key: str) -> dict[str, object]:
    paragraphs = []
    for letter, paragraph in zip("ab", article.paragraphs, strict=False):
        qas = [
            {
                "question": question.text,
                "id": f"{key}-{letter}{number}",
                "answers": [{"text": question.answer, "answer_start": question.start}],
            }
            for number, question in enumerate(paragraph.questions, 1)
        ]
        paragraphs.append({"context": paragraph.context, "qas": qas})
    return {"title": article.title, "paragraphs": paragraphs}


def matching(writer: Writer, num_rows: int) -> str:
    """Return pairs of question and passage; wrong passages are about another entity or another fact."""
    rows = [
        row
        for topic in islice(cycle(writer.topics), num_rows // 4)
        for row in _pairs(writer, writer.entity(topic))
    ]
    return _tsv(("label", "text_a", "text_b"), _shuffled(writer.rng, rows))


def _pairs(writer: Writer, entity: Entity) -> Iterator[Row]:
    facts = writer.rng.sample(entity.topic.facts, 4)
    other = writer.entity(entity.topic)
    for asked, beside, elsewhere in (facts[:3], [facts[2], facts[3], facts[0]]):
        question = writer.ask(entity, asked)
        wrong = (entity, elsewhere) if writer.rng.random() < 0.75 else (other, asked)
        for label, (about, fact) in ((1, (entity, asked)), (0, wrong)):
            told = [writer.tell(about, f, named=True).text for f in (fact, beside)]
            writer.rng.shuffle(told)
            yield label, question, " ".join(told)


def masking(writer: Writer, num_rows: int) -> str:
    """Return plain paragraphs."""
    articles = (writer.article(topic) for topic in islice(cycle(writer.topics), num_rows // 2))
    rows: list[Row] = [(paragraph.context,) for article in articles for paragraph in article.paragraphs]
    return _tsv(("text_a",), _shuffled(writer.rng, rows))


def classifying(writer: Writer, num_rows: int) -> str:
    """Return questions labelled with the kind of answer that they ask for, with balanced classes."""
    rows: dict[str, list[Row]] = {kind: [] for kind in CLASSES}
    for topic in cycle(writer.topics):
        entity = writer.entity(topic)
        for fact in topic.facts:
            if len(rows.get(fact.kind, range(num_rows))) < num_rows // len(CLASSES):
                rows[fact.kind].append((CLASSES.index(fact.kind), writer.ask(entity, fact)))
        if sum(map(len, rows.values())) == num_rows:
            return _tsv(
                ("label", "text_a"), _shuffled(writer.rng, [row for kind in CLASSES for row in rows[kind]])
            )
    raise AssertionError("there are topics")


def _tsv(header: Row, rows: list[Row]) -> str:
    return "".join("\t".join(map(str, row)) + "\n" for row in [header, *rows])


def _shuffled(rng: random.Random, rows: list[Row]) -> list[Row]:
    return rng.sample(rows, len(rows))
