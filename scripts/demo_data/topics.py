"""The topics: statements and questions about bridges, towns, painters and others, from `topics/*.txt`.

A line begins with its meaning: `name`, `short`, `person` and `filler` describe the topic, `fact` begins a
fact with the sort of its value, `-` is a sentence, `?` a question. `{S}` and `{s}` are the subject at the
beginning and inside a sentence, `{P}` its possessive, `{n}` its full name in a question, `{v}` the fact's
value; any other slot is a new distractor.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path

from demo_data.names import KINDS

FOLDER = Path(__file__).parent / "topics"


@dataclass
class Fact:
    """One attribute, with sentences that state it and questions about it."""

    name: str
    sort: str
    choice: str
    sentences: list[str] = field(default_factory=list)
    questions: list[str] = field(default_factory=list)

    @property
    def kind(self) -> str:
        return KINDS[self.sort]


@dataclass
class Topic:
    """One kind of entity."""

    key: str
    names: list[str] = field(default_factory=list)
    short: str = ""
    is_person: bool = False
    intros: list[str] = field(default_factory=list)
    fillers: list[str] = field(default_factory=list)
    facts: list[Fact] = field(default_factory=list)

    @property
    def texts(self) -> list[str]:
        """All texts, with unfilled slots."""
        told = [text for fact in self.facts for text in (fact.choice, *fact.sentences, *fact.questions)]
        return [*self.names, self.short, *self.intros, *self.fillers, *told]


def topics() -> list[Topic]:
    """Return all topics, sorted by name."""
    return [_parsed(path) for path in sorted(FOLDER.glob("*.txt"))]


def _parsed(path: Path) -> Topic:
    topic = Topic(path.stem)
    sentences = topic.intros
    for line in path.read_text(encoding="utf-8").splitlines():
        word, _, rest = line.partition(" ")
        if word == "-":
            sentences.append(rest)
        elif word == "?":
            topic.facts[-1].questions.append(rest)
        elif word == "fact":
            name, sort, *choice = rest.split(maxsplit=2)
            topic.facts.append(Fact(name, sort, choice[0] if choice else ""))
            sentences = topic.facts[-1].sentences
        elif word == "filler":
            sentences = topic.fillers
        elif word == "person":
            topic.is_person = True
        elif word == "name":
            topic.names = rest.split(" | ")
        elif word == "short":
            topic.short = rest
    return topic
