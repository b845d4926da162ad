"""The WordPiece vocabulary: whole words of the topics, syllables of invented names, and characters."""

from __future__ import annotations

import re
import string
from collections.abc import Iterable

from demo_data.names import FIRST_YEAR, LAST_YEAR, WORDS
from demo_data.topics import Topic

SPECIAL = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
CHARACTERS = sorted(set(string.printable.lower()) - set(string.whitespace))


def vocabulary(topics: Iterable[Topic]) -> list[str]:
    """Return all entries: special tokens, printable characters, numbers, words and syllables."""
    numbers = [*range(10, 100), *range(FIRST_YEAR, LAST_YEAR + 1)]
    told = {word for topic in topics for text in topic.texts for word in _words(text)}
    listed = {word.lower() for key, words in WORDS.items() if not key.endswith("_ends") for word in words}
    endings = {f"##{ending}" for key, words in WORDS.items() if key.endswith("_ends") for ending in words}
    entries = [*SPECIAL, *CHARACTERS, *(f"##{character}" for character in CHARACTERS), *map(str, numbers)]
    return list(dict.fromkeys([*entries, *sorted(told | listed), *sorted(endings)]))


def _words(text: str) -> list[str]:
    return re.findall("[a-z]+", re.sub(r"{\w+}", " ", text).lower())
