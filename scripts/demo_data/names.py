"""Invented names, years and amounts: thousands of them, and none shared between train and dev."""

from __future__ import annotations

import random
from dataclasses import dataclass
from pathlib import Path
from zlib import crc32

FILE = Path(__file__).with_name("words.txt")
WORDS = {
    key: words.split()
    for key, words in (line.split(":") for line in FILE.read_text(encoding="utf-8").splitlines())
}
"""Lists of words by name."""

KINDS = {
    "person": "person",
    **dict.fromkeys(("town", "river", "mountain", "island", "street"), "place"),
    **dict.fromkeys(("year", "date", "month"), "time"),
    "number": "number",
    "one": "thing",
}
"""Sort of a value -> the kind of question that it answers."""

FIRST_YEAR, LAST_YEAR = 1780, 2019
DEV_SHARE = 8


@dataclass(frozen=True)
class Person:
    """A first name, a surname, and the pronouns for later sentences."""

    first: str
    surname: str
    pronoun: str
    possessive: str

    def __str__(self) -> str:
        return f"{self.first} {self.surname}"


class Names:
    """Generates names; the checksum of an invented word assigns it to one split.

    Args:
        rng: the source of randomness.
        split: `train` or `dev`.
    """

    def __init__(self, rng: random.Random, split: str) -> None:
        self.rng = rng
        self.is_dev = split == "dev"

    def word(self, ends: str) -> str:
        """Return an invented word of this split with an ending from this list, such as `Torlund`."""
        while True:
            word = self._one("starts") + self._one(ends)
            if (crc32(word.encode()) % DEV_SHARE == 0) == self.is_dev:
                return word

    def _one(self, key: str) -> str:
        return self.rng.choice(WORDS[key])

    def person(self) -> Person:
        if self.rng.random() < 0.5:
            return Person(self._one("women"), self.surname(), "she", "her")
        return Person(self._one("men"), self.surname(), "he", "his")

    def first_f(self) -> str:
        return self._one("women")

    def surname(self) -> str:
        return self.word("surname_ends")

    def town(self) -> str:
        return self.word("town_ends")

    def stream(self) -> str:
        return self.word("river_ends")

    def river(self) -> str:
        return f"the River {self.stream()}"

    def mountain(self) -> str:
        return f"Mount {self.word('peak_ends')}"

    def island(self) -> str:
        return f"{self.word('isle_ends')} Island"

    def street(self) -> str:
        return f"{self.surname()} {self.rng.choice(['Street', 'Lane', 'Road'])}"

    def month(self) -> str:
        return self._one("months")

    def adjective(self) -> str:
        return self._one("adjectives")

    def noun(self) -> str:
        return self._one("nouns")

    def count(self) -> str:
        return self._one("counts")

    def year(self, low: int, high: int) -> str:
        return str(min(self.rng.randint(low, high), LAST_YEAR))

    def date(self, low: int, high: int) -> str:
        return f"{self.rng.randint(1, 28)} {self.month()} {self.year(low, high)}"

    def number(self, low: int, high: int) -> str:
        """Return a round or exact amount between the bounds, log-uniformly distributed."""
        amount = round(low * (high / low) ** self.rng.random())
        step = 100 if amount > 5000 and self.rng.random() < 0.5 else 1
        return f"{amount // step * step:,}"
