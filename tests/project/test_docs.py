"""The Python blocks of README.md, CONTRIBUTING.md and every page in docs/ run as they stand, top to bottom.

A block that begins with a comment naming a file of the project (`# demos/demo1/demo.py`) is not run:
it quotes that file, and must be found in it. A YAML block that begins so is the whole file, word for word.
"""

from __future__ import annotations

import re
from pathlib import Path
from textwrap import dedent

import pytest

from helpers.loaded import run_script

ROOT = Path(__file__).resolve().parents[2]
PAGES = sorted([*ROOT.glob("README*.md"), ROOT / "CONTRIBUTING.md", *(ROOT / "docs").rglob("*.md")])

FENCE = re.compile(r"^(?P<indent> *)```(?P<info>python.*)\n(?P<code>(?s:.*?))^(?P=indent)```$", re.MULTILINE)
QUOTE = re.compile(r"# (?P<path>\S+\.py)\n(?P<lines>.*)", re.DOTALL)


YAML = re.compile(r"^```yaml\n# (?P<path>\S+/\S+\.yaml)\n(?P<lines>(?s:.*?))^```$", re.MULTILINE)


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


def test_the_files_of_the_readme_are_those_of_demo_2() -> None:
    shown = {
        block["path"]: block["lines"] for block in YAML.finditer((ROOT / "README.md").read_text("utf-8"))
    }
    assert shown == {path: (ROOT / path).read_text(encoding="utf-8") for path in shown}
    assert list(shown) == ["demos/demo2/config.yaml", "demos/demo2/tasks/mrqa.yaml"]


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
