"""Entities with facts, and paragraphs about them."""

from __future__ import annotations

import random
import re
from collections.abc import Iterator
from dataclasses import dataclass, field

from demo_data.names import FIRST_YEAR, Names, Person
from demo_data.topics import Fact, Topic

SLOT = re.compile(r"\{(\w+)\}")
MIN_WORDS = 40
STRANGERS = 0.5
"""Share of the paragraphs that also mention a second entity."""

SAME_FACT = 0.25
"""Share of these that state the same fact of both entities, so only the name distinguishes them."""

YEARS = {"earlier": (-20, -1), "soon": (1, 19), "year": (61, 95)}
"""Ranges of distractor years, relative to the first year of an entity."""
SUBJECTS = {"S", "s", "P"}


@dataclass(frozen=True)
class Sentence:
    """A finished sentence; `answer` is the position of its fact's value, None if it states no fact."""

    text: str
    answer: tuple[int, int] | None = None


@dataclass(frozen=True)
class Question:
    """A question about one fact, and the position of the answer in its paragraph."""

    text: str
    kind: str
    answer: str
    start: int


@dataclass
class Paragraph:
    """A context with its questions."""

    context: str
    questions: list[Question]


@dataclass
class Article:
    """One or two paragraphs about one entity."""

    title: str
    paragraphs: list[Paragraph]


@dataclass
class Entity:
    """One bridge, town or painter: its name, and a value for each of its facts."""

    topic: Topic
    name: str
    person: Person | None
    base_year: int
    values: dict[str, str] = field(default_factory=dict)


class Writer:
    """Invents entities and writes about them.

    Args:
        topics: the topics to write about.
        rng: the source of randomness.
        split: `train` or `dev`, which share no invented names.
    """

    def __init__(self, topics: list[Topic], rng: random.Random, split: str) -> None:
        self.topics = topics
        self.rng = rng
        self.split = split
        self.names = Names(rng, split)

    def article(self, topic: Topic) -> Article:
        """Return an article about a new entity of the topic, in two paragraphs that divide its facts."""
        entity = self.entity(topic)
        facts = self.rng.sample(topic.facts, len(topic.facts))
        half = len(facts) // 2
        paragraphs = [self.paragraph(entity, part) for part in (facts[:half], facts[half:])]
        return Article(_title(entity.name), paragraphs)

    def entity(self, topic: Topic) -> Entity:
        person = self.names.person() if topic.is_person else None
        name = str(person) if person else self._filled(self.rng.choice(topic.names), FIRST_YEAR)
        entity = Entity(topic, name, person, self.rng.randint(FIRST_YEAR, 1920))
        for fact in topic.facts:
            entity.values[fact.name] = self._value(fact, entity.base_year)
        return entity

    def paragraph(self, entity: Entity, facts: list[Fact]) -> Paragraph:
        """Return an introduction, the facts, and often a second entity similar to the first."""
        told = [(entity, fact) for fact in facts]
        if self.rng.random() < STRANGERS:
            others = (
                facts if self.rng.random() < SAME_FACT else [f for f in entity.topic.facts if f not in facts]
            )
            told.append((self.entity(entity.topic), self.rng.choice(others)))
        self.rng.shuffle(told)
        sentences = [self._plain(entity, self.rng.choice(entity.topic.intros), named=True)]
        questions: list[tuple[int, Entity, Fact]] = []
        before = entity
        for about, fact in told:
            questions.append((len(sentences), about, fact))
            sentences.append(self.tell(about, fact, named=not (before is about is entity)))
            before = about
        sentences += self._rest(entity, sentences)
        return self._assembled(entity, sentences, questions)

    def glimpse(self, topic: Topic) -> Article:
        """Return an article of two sentences: two facts of one entity, or one of each of two entities."""
        entity = self.entity(topic)
        first, second = self.rng.sample(topic.facts, 2)
        told = [(entity, first), (entity, second)]
        if self.rng.random() < STRANGERS:
            told[1] = (self.entity(topic), self.rng.choice([first, second]))
        self.rng.shuffle(told)
        sentences = [self.tell(about, fact, named=True) for about, fact in told]
        asked = [(index, about, fact) for index, (about, fact) in enumerate(told)]
        return Article(_title(entity.name), [self._assembled(entity, sentences, asked)])

    def _rest(self, entity: Entity, told: list[Sentence]) -> Iterator[Sentence]:
        """Yield filler sentences, up to a minimum length of the paragraph, and sometimes one more."""
        fillers = self.rng.sample(entity.topic.fillers, len(entity.topic.fillers))
        num_words = sum(len(sentence.text.split()) for sentence in told)
        wanted = num_words + 1 if self.rng.random() < 0.3 else MIN_WORDS
        while num_words < wanted and fillers:
            sentence = self._plain(entity, fillers.pop())
            num_words += len(sentence.text.split())
            yield sentence

    def _assembled(
        self, entity: Entity, sentences: list[Sentence], asked: list[tuple[int, Entity, Fact]]
    ) -> Paragraph:
        context = " ".join(sentence.text for sentence in sentences)
        alone = all(about is entity for _, about, _ in asked)
        questions = []
        for index, about, fact in asked:
            sentence = sentences[index]
            assert sentence.answer is not None
            offset = sum(len(before.text) + 1 for before in sentences[:index])
            begin, end = sentence.answer
            text = self.ask(about, fact, named=not (alone and self.rng.random() < 0.15))
            questions.append(Question(text, fact.kind, sentence.text[begin:end], offset + begin))
        return Paragraph(context, questions)

    def tell(self, entity: Entity, fact: Fact, named: bool = False) -> Sentence:
        """Return a sentence that states the fact; with `named`, it names the subject."""
        templates = [s for s in fact.sentences if not named or SUBJECTS & set(SLOT.findall(s))]
        return self._sentence(entity, self.rng.choice(templates), entity.values[fact.name], named)

    def ask(self, entity: Entity, fact: Fact, named: bool = True) -> str:
        """Return a question about the fact."""
        subject = entity.name if named or entity.person else entity.topic.short
        return _capital(self.rng.choice(fact.questions).replace("{n}", subject))

    def _plain(self, entity: Entity, template: str, named: bool = False) -> Sentence:
        return Sentence(self._sentence(entity, template, "", named).text)

    def _sentence(self, entity: Entity, template: str, value: str, named: bool) -> Sentence:
        text, answer = "", None
        for index, part in enumerate(SLOT.split(template)):
            if index % 2 == 0:
                text += part
            elif part == "v":
                answer = (len(text), len(text) + len(value))
                text += value
            elif part in SUBJECTS:
                text += self._subject(entity, part, named)
            else:
                text += self._distractor(part, entity.base_year)
        return Sentence(_capital(text), answer)

    def _subject(self, entity: Entity, slot: str, named: bool) -> str:
        short = entity.person.surname if entity.person else entity.topic.short
        pronoun = entity.person.pronoun if entity.person else "it"
        possessive = entity.person.possessive if entity.person else "its"
        draw = 0.0 if named else self.rng.random()
        if draw < 0.4:
            return entity.name + ("'s" if slot == "P" else "")
        if draw < 0.75 or slot == "s":
            return short + ("'s" if slot == "P" else "")
        return possessive if slot == "P" else pronoun

    def _filled(self, template: str, base_year: int) -> str:
        return SLOT.sub(lambda match: self._distractor(match[1], base_year), template)

    def _distractor(self, slot: str, base_year: int) -> str:
        if slot in YEARS:
            first, last = YEARS[slot]
            return self.names.year(base_year + first, base_year + last)
        return str(getattr(self.names, slot)())

    def _value(self, fact: Fact, base_year: int) -> str:
        if fact.sort == "one":
            return self.rng.choice(fact.choice.removeprefix("of ").split(" | "))
        if not fact.choice:
            return str(getattr(self.names, fact.sort)())
        numbers, _, unit = fact.choice.partition(" ")
        low, high = (int(number) for number in numbers.split("-"))
        if fact.sort == "number":
            return f"{self.names.number(low, high)} {unit}"
        return str(getattr(self.names, fact.sort)(base_year + low, base_year + high))


def _capital(text: str) -> str:
    return text[:1].upper() + text[1:]


def _title(name: str) -> str:
    return _capital(name.removeprefix("the "))
