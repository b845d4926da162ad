"""The Python blocks of README.md, CONTRIBUTING.md and every page in docs/ run as they stand, top to bottom.

A block that begins with a comment naming a file of the project (`# demos/demo1/demo.py`) is not run:
it quotes that file, and must be found in it."""

from __future__ import annotations

import json
import re
import runpy
import subprocess
import sys
from pathlib import Path
from textwrap import dedent

import pytest
import yaml

from helpers.loaded import run_script
from palm.config.run import listed
from palm.controller.resolve import HELP, NO_SETTINGS

ROOT = Path(__file__).resolve().parents[2]
PAGES = sorted([*ROOT.glob("README*.md"), ROOT / "CONTRIBUTING.md", *(ROOT / "docs").rglob("*.md")])

REPORTS = sorted((ROOT / "benchmarks").glob("*.md"))

FENCE = re.compile(r"^(?P<indent> *)```(?P<info>python.*)\n(?P<code>(?s:.*?))^(?P=indent)```$", re.MULTILINE)
QUOTE = re.compile(r"# (?P<path>\S+\.py)\n(?P<lines>.*)", re.DOTALL)


LINK = re.compile(r"\]\(([^)\s]+)\)")


def program(page: Path) -> str:
    """The page's Python blocks as one program, each on the lines where the page has it."""
    text = page.read_text(encoding="utf-8")
    written: list[str] = []
    for block in FENCE.finditer(text):
        first_line = text.count("\n", 0, block.start("code"))
        assert block["info"] == "python", f"{page.name}:{first_line}: a block that would not be run"
        code = dedent(block["code"])
        if quote := QUOTE.fullmatch(code):
            assert quote["lines"] in (ROOT / quote["path"]).read_text(encoding="utf-8")
        else:
            written += [""] * (first_line - len(written)) + code.splitlines()
    return "\n".join(written)


def links(text: str) -> list[str]:
    """The targets of a page's links; the Chinese page of the same name stands for an English one."""
    found = LINK.findall(re.sub(r"```.*?```", "", text, flags=re.DOTALL))
    return [target.replace("docs/zh/", "docs/") for target in found]


def test_the_readmes_have_the_same_commands_and_links() -> None:
    english, chinese = ((ROOT / name).read_text("utf-8") for name in ("README.md", "README.zh-CN.md"))
    blocks = re.compile(r"^```.*?^```", re.MULTILINE | re.DOTALL)
    assert blocks.findall(english) == blocks.findall(chinese)
    assert links(english)[1:] == links(chinese)[1:]  # the first is the link to the other language
    assert [len(mark) for mark in re.findall("^#+", english, re.M)] == [
        len(mark) for mark in re.findall("^#+", chinese, re.M)
    ]


@pytest.mark.parametrize("page", [*PAGES, *REPORTS], ids=lambda page: page.relative_to(ROOT).as_posix())
def test_links_lead_to_files_and_headings(page: Path) -> None:
    for target in LINK.findall(re.sub(r"```.*?```", "", page.read_text("utf-8"), flags=re.DOTALL)):
        if target.startswith(("http:", "https:")):
            continue
        name, _, anchor = target.partition("#")
        file = (page.parent / name).resolve() if name else page
        assert file.exists(), f"{page.name}: {target}"
        if anchor:
            assert anchor in anchors(file), f"{page.name}: {target}"


def anchors(page: Path) -> set[str]:
    """The names that GitHub gives to the headings of a page."""
    text = re.sub(r"```.*?```", "", page.read_text("utf-8"), flags=re.DOTALL)
    headings = re.findall(r"^#+ (.+)$", text, re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


def test_the_index_names_every_page() -> None:
    index = (ROOT / "docs" / "README.md").read_text(encoding="utf-8")
    pages = {path.name for path in (ROOT / "docs").glob("*.md")} - {"README.md"}
    assert {name for name in pages if f"({name})" not in index} == set()


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.relative_to(ROOT).as_posix())
def test_the_examples_of_a_page_run(page: Path, tmp_path: Path) -> None:
    code = program(page)
    if not code:
        pytest.skip("nothing to run on this page")
    script = tmp_path / f"{page.stem}.py"
    script.write_text(code, encoding="utf-8")
    status, output = run_script(script, tmp_path)
    assert status == 0, f"line numbers are those of {page.name}:\n{output}"


# docs/from_hugging_face.md names settings that palm has, and its example is a configuration.


PAGE = Path(__file__).resolve().parents[2] / "docs" / "from_hugging_face.md"
TEXT = PAGE.read_text(encoding="utf-8")
SETTINGS = {name for group in HELP.values() for each in listed(group, NO_SETTINGS) for name in [each.name]}
ROWS = [line.strip("|").split(" | ") for line in TEXT.splitlines() if line.startswith("| ")]
NAMED = sorted({name for row in ROWS for name in re.findall(r"`(\w+)(?:: \w+)?`", row[1])})


@pytest.mark.parametrize("name", NAMED)
def test_a_setting_that_the_page_names_exists(name: str) -> None:
    assert name in SETTINGS


def test_the_settings_of_the_example_exist() -> None:
    blocks = [yaml.safe_load(block) for block in re.findall(r"```yaml\n(.*?)```", TEXT, re.DOTALL)]
    assert {name for block in blocks for name in block} - SETTINGS == set()


# The prose of README.md and docs/: short sentences, and a page begins with whom it serves.


DOCS = sorted((ROOT / "docs").glob("*.md"))
OTHERS = sorted(
    [
        *(ROOT / f"{name}.md" for name in ("README", "CONTRIBUTING", "SECURITY")),
        *(ROOT / "docs" / "decisions").glob("*.md"),
    ]
)
MOST_WORDS = 35
NOT_PROSE = re.compile(
    r"^ *```.*?^ *```$|^<picture>.*?^</picture>$|<!--.*?-->|^\|[^\n]*$|^#[^\n]*$", re.M | re.S
)
SENTENCE = re.compile(r"(?<=[.!?])[\"'”)*_]*\s+")


def sentences(text: str) -> list[str]:
    """Return the sentences outside code, tables and headings; an item of a list and a paragraph end one."""
    blocks = re.split(r"\n\s*\n|^\s*(?:[-*]|\d+\.)\s", NOT_PROSE.sub("\n\n", text), flags=re.MULTILINE)
    return [" ".join(each.split()) for block in blocks for each in SENTENCE.split(block)]


@pytest.mark.parametrize("page", [*DOCS, *OTHERS], ids=lambda page: page.name)
def test_no_sentence_is_longer_than_35_words(page: Path) -> None:
    text = re.sub(r"\]\([^)]*\)", "]", page.read_text("utf-8"))
    assert [each for each in sentences(text) if len(each.split()) > MOST_WORDS] == []


CHINESE = sorted((ROOT / "docs" / "zh").glob("*.md"))
GUIDES = [*DOCS, *CHINESE, ROOT / "docs/decisions/README.md", ROOT / "CONTRIBUTING.md", ROOT / "SECURITY.md"]


@pytest.mark.parametrize("page", GUIDES, ids=lambda page: f"{page.parent.name}/{page.name}")
def test_a_page_begins_with_whom_it_serves(page: Path) -> None:
    title, blank, first, *_ = page.read_text("utf-8").splitlines()
    assert title.startswith("# ")
    assert not blank
    assert first.startswith(("For people ", "写给")), f"{page.name}: {first}"


def test_the_documentation_is_a_book_and_no_library() -> None:
    assert len(DOCS) <= 30
    assert sum(len(page.read_text("utf-8").split()) for page in DOCS) <= 45_000


# The documentation as a site: every page in the navigation, no dead link, no request to another host.


SITE = ROOT / "scripts" / "build_site.py"


def test_the_site_has_every_page_and_no_dead_link(tmp_path: Path) -> None:
    pytest.importorskip("zensical", reason="needs the extra `docs`")
    words = [str(SITE), "--output", str(tmp_path / "site"), "--url", "https://host.example/palm/"]
    done = subprocess.run([sys.executable, *words], capture_output=True, text=True)
    assert done.returncode == 0, done.stdout[-3000:]
    start = (tmp_path / "site" / "index.html").read_text("utf-8")
    pages = [page for page in (ROOT / "docs").rglob("*.md") if "decisions" not in page.parts]
    named = {page.relative_to(ROOT).with_suffix("").as_posix() for page in pages if page.name != "README.md"}
    assert {name for name in named if f'href="./{name}/"' not in start} == set()
    search = json.loads((tmp_path / "site" / "search.json").read_text("utf-8"))
    assert search["config"]["lang"] == ["en", "zh"]  # the worker of the search divides Chinese into words
    for page, language, other in [("README.zh-CN", "zh", ""), ("docs/data", "en", "docs/zh/data/")]:
        text = (tmp_path / "site" / page / "index.html").read_text("utf-8")
        assert f'<html lang="{language}"' in text
        assert f'href="/palm/{other}" hreflang="{"en" if language == "zh" else "zh"}"' in text


def test_a_dead_link_and_a_script_of_another_host_are_found(tmp_path: Path) -> None:
    sys.path.insert(0, str(SITE.parent))
    try:
        from build_site import problems
    finally:
        sys.path.remove(str(SITE.parent))
    (tmp_path / "there").mkdir()
    (tmp_path / "there" / "index.html").write_text('<a href="../index.html">good</a>', encoding="utf-8")
    (tmp_path / "index.html").write_text(
        '<a href="there/">good</a> <a href="gone/#x">bad</a> <script src="https://cdn.example/x.js"></script>'
        '<a href="/palm/there/">good</a> <a href="/there/">outside the site</a>',
        encoding="utf-8",
    )
    dead, outside, asks = sorted(problems(tmp_path, "/palm/"), reverse=True)
    assert dead == "index.html: dead link: gone/"
    assert outside == "index.html: dead link: /there/"
    assert asks.startswith("index.html: asks another host: <script src=")


# The reference pages are those that the code has.


def test_the_reference_pages_are_current() -> None:
    for path, page in runpy.run_path(str(ROOT / "scripts" / "make_reference.py"))["PAGES"].items():
        assert path.read_text(encoding="utf-8") == page(), "run python scripts/make_reference.py"
