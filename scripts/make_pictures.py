"""Make the pictures of README.md: the report of a run and the page of `palm serve`, light and dark.

Trains the tutorial's tasks, which takes half a minute. Needs Chromium, chromedriver and the extras
`report` and `serve`.
"""

from __future__ import annotations

import os
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
PICTURES = ROOT / "docs" / "pictures"
TEXT = "We waited three hours to check in. The room was quiet, with a view over the lake."
sys.path[:0] = [str(ROOT), str(ROOT / "tests")]


def main() -> None:
    from helpers.browser import browser
    from helpers.serving import served
    from palm.cli import main as palm

    PICTURES.mkdir(exist_ok=True)
    with tempfile.TemporaryDirectory() as made:
        folder = Path(made)
        os.chdir(folder)
        table = (ROOT / "data" / "reviews" / "reviews.en.csv").read_text("utf-8").splitlines(keepends=True)
        mended = [line.replace(",rooms,", ",room,") for number, line in enumerate(table, 1) if number != 302]
        Path("reviews.csv").write_text("".join(mended), encoding="utf-8")
        output = folder / "hotel" / "output"
        palm(["init", "hotel", "--from", "reviews.csv"])
        palm(["train", "hotel/config.yaml"])
        palm(["report", "hotel/output"])
        with browser(folder / "browser") as page, served(output / "model") as url:
            for scheme in ("light", "dark"):
                page.open((output / "report.html").as_uri(), 1100, scheme)
                page.picture(PICTURES / f"report-{scheme}.png", whole=False)
                page.open(url, 1100, scheme)
                page.wait_for("document.querySelectorAll('#tasks input').length === 3")
                page.type("#text", TEXT + "\ue009\ue007")  # Ctrl + Enter
                page.wait_for("document.querySelectorAll('article').length === 3")
                page.picture(PICTURES / f"serve-{scheme}.png", whole=False)


if __name__ == "__main__":
    main()
