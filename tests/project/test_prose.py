"""The prose of README.md and docs/: short sentences, and a page begins with whom it serves."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
PAGES = sorted((ROOT / "docs").glob("*.md"))
OTHERS = sorted(
    [
        *(ROOT / f"{name}.md" for name in ("README", "CONTRIBUTING", "SECURITY")),
        *(ROOT / "docs" / "decisions").glob("*.md"),
    ]
)
CHINESE = sorted((ROOT / "docs" / "zh").glob("*.md"))
MOST_WORDS = 35
NOT_PROSE = re.compile(
    r"^ *```.*?^ *```$|^<picture>.*?^</picture>$|<!--.*?-->|^\|[^\n]*$|^#[^\n]*$", re.M | re.S
)
SENTENCE = re.compile(r"(?<=[.!?])[\"'”)*_]*\s+")


def sentences(text: str) -> list[str]:
    """Return the sentences outside code, tables and headings; an item of a list and a paragraph end one."""
    blocks = re.split(r"\n\s*\n|^\s*(?:[-*]|\d+\.)\s", NOT_PROSE.sub("\n\n", text), flags=re.MULTILINE)
    return [" ".join(each.split()) for block in blocks for each in SENTENCE.split(block)]


@pytest.mark.parametrize("page", [*PAGES, *OTHERS], ids=lambda page: page.name)
def test_no_sentence_is_longer_than_35_words(page: Path) -> None:
    text = re.sub(r"\]\([^)]*\)", "]", page.read_text("utf-8"))
    assert [each for each in sentences(text) if len(each.split()) > MOST_WORDS] == []


GUIDES = [*PAGES, *CHINESE, ROOT / "CONTRIBUTING.md", ROOT / "SECURITY.md"]


@pytest.mark.parametrize("page", GUIDES, ids=lambda page: f"{page.parent.name}/{page.name}")
def test_a_page_begins_with_whom_it_serves(page: Path) -> None:
    title, blank, first, *_ = page.read_text("utf-8").splitlines()
    assert title.startswith("# ")
    assert not blank
    assert first.startswith(("For people ", "写给")), f"{page.name}: {first}"


def test_long_sentences_are_found_and_tables_are_not() -> None:
    text = f"# {'a ' * 40}\n\nOne two. Three `four`.\n\n| {'a ' * 40} |\n\n- {'word ' * 36}\n"
    assert sorted(len(each.split()) for each in sentences(text) if each) == [2, 2, 36]


def test_the_documentation_is_a_book_and_no_library() -> None:
    assert len(PAGES) <= 30
    assert sum(len(page.read_text("utf-8").split()) for page in PAGES) <= 45_000
