"""The Python blocks of README.md, CONTRIBUTING.md and every page in docs/ run as they stand, top to bottom.

A block that begins with a comment naming a file of the project (`# demos/demo1/demo.py`) is not run:
it quotes that file, and must be found in it.
"""

from __future__ import annotations

import re
from pathlib import Path
from textwrap import dedent

import pytest

from helpers.loaded import run_script

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
