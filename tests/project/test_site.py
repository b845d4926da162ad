"""The documentation as a site: every page in the navigation, no dead link, no request to another host."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
SCRIPT = ROOT / "scripts" / "build_site.py"


def test_the_site_has_every_page_and_no_dead_link(tmp_path: Path) -> None:
    pytest.importorskip("zensical", reason="needs the extra `docs`")
    done = subprocess.run(
        [sys.executable, str(SCRIPT), "--output", str(tmp_path / "site")], capture_output=True, text=True
    )
    assert done.returncode == 0, done.stdout[-3000:]
    start = (tmp_path / "site" / "index.html").read_text("utf-8")
    pages = [page for page in (ROOT / "docs").rglob("*.md") if "decisions" not in page.parts]
    named = {page.relative_to(ROOT).with_suffix("").as_posix() for page in pages if page.name != "README.md"}
    assert {name for name in named if f'href="./{name}/"' not in start} == set()


def test_a_dead_link_and_a_script_of_another_host_are_found(tmp_path: Path) -> None:
    sys.path.insert(0, str(SCRIPT.parent))
    try:
        from build_site import problems
    finally:
        sys.path.remove(str(SCRIPT.parent))
    (tmp_path / "there").mkdir()
    (tmp_path / "there" / "index.html").write_text('<a href="../index.html">good</a>', encoding="utf-8")
    (tmp_path / "index.html").write_text(
        '<a href="there/">good</a> <a href="gone/#x">bad</a> <script src="https://cdn.example/x.js"></script>',
        encoding="utf-8",
    )
    dead, asks = sorted(problems(tmp_path), reverse=True)
    assert dead == "index.html: dead link: gone/"
    assert asks.startswith("index.html: asks another host: <script src=")
