"""Make the pictures of README.md and docs/gallery.md: `python scripts/make_pictures.py [PART ...]`.

Trains the tutorial's tasks, a comparison of them and two demos from fixed seeds, a few minutes in all.
The parts are `hotel`, `compare`, `check`, `reading` and `demo`. Needs Chromium, chromedriver, Pillow and
the extras `report` and `serve`.
"""

from __future__ import annotations

import argparse
import contextlib
import html
import io
import os
import re
import sys
import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING

ROOT = Path(__file__).resolve().parents[1]
PICTURES = ROOT / "docs" / "pictures"
TEXT = "We waited three hours to check in. The room was quiet, with a view over the lake."
WIDTH, HEIGHT = 1100, 900
LARGEST = 150_000
"""Bytes of a picture."""

SHORT_PLACES = """document.querySelectorAll('.about span').forEach(
    place => place.textContent = place.textContent.replace(/^.*[/]/, ''))"""
"""Rows are named by their file, not by where it lies on this machine."""

TERMINAL = """<meta charset="utf-8"><style>:root {{ color-scheme: light dark }}
body {{ margin: 20px; background: light-dark(#fff, #16181d); color: light-dark(#1b1f24, #d7dae0) }}
pre {{ font: 13px/1.4 monospace }}</style><pre>$ {command}\n{output}</pre>"""
sys.path[:0] = [str(ROOT), str(ROOT / "tests")]

if TYPE_CHECKING:
    from helpers.browser import Browser


def palm(command: str) -> str:
    """Run a command of palm; return what it printed."""
    from palm.cli import main

    with contextlib.redirect_stdout(io.StringIO()) as printed:
        main(command.split())
    return printed.getvalue()


def take(page: Browser, url: str, name: str, wait: str = "", begin: str = "", height: int = HEIGHT) -> None:
    """Take a picture of a page in both schemes, from the element `begin` on."""
    from PIL import Image

    for scheme in ("light", "dark"):
        page.open(url, WIDTH, scheme)
        if begin:
            there = f"document.querySelector('{begin}')"
            page.wait_for(f"{there} !== null && document.readyState === 'complete'")
            time.sleep(1)  # charts are drawn, which moves what is below them
            page.script(SHORT_PLACES)
            page.script(f"{there}.scrollIntoView({{behavior: 'instant'}})")
        if wait:
            page.wait_for("document.querySelector('#text') !== null")
            page.type("#text", TEXT + "\ue009\ue007")  # Ctrl + Enter
            page.wait_for(wait)
        path = PICTURES / f"{name}-{scheme}.png"
        page.picture(path, whole=False)
        shown = Image.open(path).convert("RGB").crop((0, 0, WIDTH, height))
        shown.quantize(96).save(path, optimize=True)
        assert path.stat().st_size < LARGEST, f"{path}: {path.stat().st_size} bytes"


def write_table(mended: bool) -> None:
    """Write the tutorial's table, with its two mistakes or without them."""
    lines = (ROOT / "data" / "reviews" / "reviews.en.csv").read_text("utf-8").splitlines(keepends=True)
    if mended:
        lines = [line.replace(",rooms,", ",room,") for number, line in enumerate(lines, 1) if number != 302]
    Path("reviews.csv").write_text("".join(lines), encoding="utf-8")


def hotel(page: Browser) -> None:
    """The report of the tutorial's run, its errors, and the page of `palm serve`."""
    from helpers.serving import served

    if not Path("hotel/output/model").exists():
        write_table(mended=True)
        palm("init hotel --from reviews.csv")
        palm("train hotel/config.yaml")
    palm("report hotel/output")
    report = Path("hotel/output/report.html").resolve().as_uri()
    take(page, report, "report")
    take(page, report, "errors", begin="#task-2 .columns")
    with served(Path("hotel/output/model")) as url:
        take(page, url, "serve", wait="document.querySelectorAll('article').length === 3")


def compare(page: Browser) -> None:
    """The page of a comparison of the tutorial's tasks, alone and together."""
    if not Path("hotel/config.yaml").exists():
        write_table(mended=True)
        palm("init hotel --from reviews.csv")
    palm("compare hotel/config.yaml --seeds 2 --effort quick")
    palm("report hotel/output_compare")
    take(page, Path("hotel/output_compare/report.html").resolve().as_uri(), "compare", height=700)


def check(page: Browser) -> None:
    """What `palm check` says of the tutorial's table with its mistakes."""
    write_table(mended=False)
    palm("init mistaken --from reviews.csv")
    lines = palm("check mistaken/config.yaml --no_measure").replace("mistaken/", "").splitlines()
    lines[-1] = re.sub(r" \([\d.]+ s\)$", "", lines[-1])  # the time of this machine
    plan = lines.index("Plan")
    output = "\n".join([*lines[:5], "  ...", *lines[plan:]])  # the middle lists labels and wiring
    shown = TERMINAL.format(command="palm check config.yaml", output=html.escape(output))
    Path("check.html").write_text(shown, encoding="utf-8")
    take(page, Path("check.html").resolve().as_uri(), "check", height=520)


def reading(page: Browser) -> None:
    """The report of demo 2: answers in their texts."""
    out = Path("reading")
    if not out.exists():
        dev = f"--mrqa.dev_file {ROOT}/data/mrqa/dev.json"
        palm(f"train {ROOT}/demos/demo2/config.yaml --task_dir tasks --save_path {out} {dev}")
    palm(f"report {out}")
    take(page, (out / "report.html").resolve().as_uri(), "answers", begin="#task-1 .rows")


def demo(page: Browser) -> None:
    """The report of demo 10: spans, and relations between them."""
    out = Path("spans")
    if not out.exists():
        palm(f"train {ROOT}/demos/demo10/config.yaml --save_path {out} --num_epochs 3")
    palm(f"report {out}")
    take(page, (out / "report.html").resolve().as_uri(), "spans", begin="#task-1 .rows")


PARTS = {part.__name__: part for part in (hotel, compare, check, reading, demo)}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("part", nargs="*", default=list(PARTS), help="which pictures; all by default")
    parser.add_argument("--folder", type=Path, help="where runs are kept, and finished ones found")
    options = parser.parse_args()
    from helpers.browser import browser

    PICTURES.mkdir(exist_ok=True)
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as made:
        os.chdir(options.folder or made)
        with browser(Path(made) / "browser") as page:
            for part in options.part:
                PARTS[part](page)


if __name__ == "__main__":
    main()
